"""Fill `work/`: the labs and chapters to work in, and `mine`, the files that the reader writes.

Chapters come as notebooks; labs without the cells that only hold the book to what it says. Nothing
in `work/` is ever overwritten, and neither the book nor a test reads it. When a lab has changed
since it was copied, a copy that nobody has touched is brought up to date; beside one that somebody
has, the new lab is put as `NAME.newer.ipynb`.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from sphinx.config import Config
from sphinx.directives.code import LiteralIncludeReader
from sphinx_external_toc.parsing import parse_toc_yaml

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "work"
CHECKS = "remove-cell"  # the tag of their cells
LESSON = ("ring", "ddp", "zero", "zero3", "fsdp")
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)?(?:book/)?[\w/]+)\.md(#[\w-]*)?\)")
INCLUDE = re.compile(r"```\{literalinclude\} (\S+)\n((?::.*\n)*)```")
FIGURE = re.compile(r"```\{lab-figure\} [\w-]+\n```")
ROLE = re.compile(r"\{([\w:]+)\}`([^`<]*?)\s*(?:<[^`]*>)?`")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stub(source: str) -> str:
    """The same file with nothing in its functions but their docstrings."""
    lines = source.replace("from_scratch", "mine").splitlines()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    for node in sorted(functions, key=lambda each: each.lineno, reverse=True):
        body = node.body[1:] if ast.get_docstring(node) else node.body
        start = body[0].lineno if body else (node.end_lineno or 0) + 1
        indent = " " * (node.col_offset + 4)
        lines[start - 1 : node.end_lineno] = [f"{indent}raise NotImplementedError"]
    return "\n".join(lines) + "\n"


def is_check(cell: Any) -> bool:
    """Whether it only holds the book to what it says."""
    return CHECKS in cell["metadata"].get("tags", [])


def is_solution(cell: Any) -> bool:
    """Whether it is a folded solution, of an exercise or of anything else."""
    tags = cell["metadata"].get("tags", [])
    return "".join(cell["source"]).startswith("# Solution") or any(
        tag.startswith("solution-") for tag in tags
    )


def without(drop: Callable[[Any], bool], source: Path) -> bytes:
    """A notebook without some of its cells; any other file as it is."""
    if source.suffix != ".ipynb":
        return source.read_bytes()
    lab = json.loads(source.read_text())
    lab["cells"] = [cell for cell in lab["cells"] if not drop(cell)]
    return (json.dumps(lab, indent=1, ensure_ascii=False) + "\n").encode()


def included(source: Path, file: str, options: str) -> str:
    """The piece of a file that a chapter shows, as Sphinx finds it."""
    wanted = {key[1:]: value for key, value in map(_option, options.splitlines())}
    text, _ = LiteralIncludeReader(str(source.parent / file), wanted, Config()).read()
    return f"```python\n{text.rstrip()}\n```"


def _option(line: str) -> tuple[str, Any]:
    """`:name: value`, in YAML."""
    name, value = line.split(": ", 1)
    return name, yaml.safe_load(value)


def pages() -> list[str]:
    """The labs and the chapters that have cells, in the order of the book."""
    names = parse_toc_yaml(ROOT / "_toc.yml")
    return [
        name
        for name in names
        if (ROOT / f"{name}.ipynb").exists()
        or is_myst_markdown_notebook((ROOT / f"{name}.md").read_text())
    ]


def linked(text: str, known: Iterable[str] | None = None) -> str:
    """The same text; its links lead to notebooks, and those to pages without cells are gone.

    `known`: the pages with cells, if they have been found already.
    """
    here = {Path(name).name for name in (pages() if known is None else known)}

    def link(found: re.Match[str]) -> str:
        words, page, anchor = found.groups(default="")
        return f"[{words}]({page}.ipynb{anchor})" if Path(page).name in here else words

    return LINK.sub(link, text)


def chapter(source: Path, known: Iterable[str] | None = None) -> bytes:
    """A chapter as a notebook. What a lab has measured, `glue`, is for the book to show.

    `known`: as for `linked`.
    """
    text = INCLUDE.sub(lambda m: included(source, m[1], m[2]), source.read_text())
    book, known = read_myst_markdown_notebook(text), pages() if known is None else known
    for cell in book.cells:
        if is_check(cell):
            cell.metadata["jupyter"] = {"source_hidden": True}
    for cell in (each for each in book.cells if each.cell_type == "markdown"):
        text = FIGURE.sub("*(The lab draws a figure here.)*", cell.source)
        text = ROLE.sub(lambda m: "…" if m[1].startswith("glue") else m[2], text)
        cell.source = linked(text, known)
    for number, cell in enumerate(book.cells):
        cell.id = str(number)
    return str(nbformat.writes(book)).encode()


def title(page: bytes) -> str:
    """The first heading of a notebook."""
    cells = nbformat.reads(page.decode(), as_version=4).cells
    found = re.search(r"^# (.*)", "\n".join(cell.source for cell in cells), re.MULTILINE)
    return found[1] if found else ""


def contents(copied: Iterable[tuple[str, bytes]]) -> bytes:
    """The page to start from: chapters, and under each its lab, in the order of the book."""
    lines = [
        f"{'   - ' if name.startswith('notebooks') else '1. '}[{title(page)}]({name})"
        for name, page in copied
    ]
    text = "\n".join(
        [
            "# Start here",
            "Open a chapter, then the lab below it, and run the cells from top to bottom. Change "
            "what you like: nothing overwrites these copies.",
            "",
            *lines,
            "",
            "The ring, DDP, ZeRO and FSDP that you write yourself belong in `mine/`. "
            "`make grade`, in a terminal in the course's folder, grades them.",
        ]
    )
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text, id="contents")])
    return str(nbformat.writes(page)).encode()


def files() -> Iterator[tuple[str, bytes]]:
    """Name and content of what is copied."""
    copied = []
    for name in pages():
        lab = ROOT / f"{name}.ipynb"
        page = without(is_check, lab) if lab.exists() else chapter(ROOT / f"{name}.md")
        copied.append((f"{name}.ipynb", linked(page.decode()).encode() if lab.exists() else page))
    yield from copied
    yield "START.ipynb", contents(copied)


def copy(name: str, new: bytes, copied: dict[str, str]) -> str:
    """Bring a file to `work/`; what there is to say about it, or nothing."""
    target = WORK / name
    last, copied[name] = copied.get(name), digest(new)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(new)
        return ""
    if last == digest(new):
        return ""
    if last == digest(target.read_bytes()):  # nobody has touched it
        target.write_bytes(new)
        return f"{name} is up to date again."
    newer = target.with_suffix(f".newer{target.suffix}")
    newer.write_bytes(new)
    return f"{name} has changed since you began with it: the new one is {newer.name}."


def fill() -> list[str]:
    """Copy what is missing; return what there is to say."""
    record = WORK / ".copied.json"
    copied: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    said = [copy(name, new, copied) for name, new in files()]
    mine = WORK / "mine"
    mine.mkdir(parents=True, exist_ok=True)
    front = (ROOT / "lib" / "from_scratch" / "__init__.py").read_text()
    texts = {"__init__": '"""What I write."""\n' + front[front.index("\nfrom __future__") :]}
    for name in LESSON:
        texts[name] = stub((ROOT / "lib" / "from_scratch" / f"{name}.py").read_text())
    texts["capstone"] = (ROOT / "lib" / "course" / "capstone" / "stub.py").read_text()
    for name, text in texts.items():
        if not (mine / f"{name}.py").exists():
            (mine / f"{name}.py").write_text(text)
    aside = record.with_suffix(".new")
    aside.write_text(json.dumps(copied, indent=1))
    aside.replace(record)
    return [each for each in said if each]


if __name__ == "__main__":
    for line in fill():
        print(line)
