"""Fill `work/`: the labs and chapters to work in, and `mine`, the files that the reader writes.

Chapters and labs come as notebooks to read and to run (`tools.readable`), without the cells that
only hold the book to what it says. Nothing that you have touched in `work/` is ever overwritten,
and neither the book nor a test reads it. When a page has changed since it was copied, a copy that
nobody has touched is brought up to date; beside one that somebody has, the new one is put as
`NAME.newer.ipynb`, or `NAME.newer-2.ipynb` if that has been worked in, too.
"""

import ast
import hashlib
import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
from sphinx_external_toc.parsing import parse_toc_yaml

from tools.pages import source
from tools.readable import KERNEL, Book, Built, notebook

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "work"
LESSON = (
    *("ring", "ddp", "zero", "zero3", "fsdp"),
    *("pipeline", "tensor", "context", "expert", "local_sgd"),
)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


GIVEN = "# Given: checks that other files import. There is nothing to write in this one.\n"


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


def listed(book: Book) -> Iterator[str]:
    """The book's contents, with its numbers: chapters, and under each its labs."""
    toc = parse_toc_yaml(book.root / "_toc.yml")
    for part in toc.root.subtrees:
        yield f"\n**{part.caption}**\n"
        for page in map(str, part.items):
            sign = f"{book.chapters[page]}." if part.numbered else "-"
            if book.runs(page):
                yield f"{sign} [{book.titles[page]}]({page}.ipynb)"
            for lab in (str(item) for below in toc[page].subtrees for item in below.items):
                if book.runs(lab):
                    yield f"{' ' * len(sign)} - [{book.titles[lab]}]({lab}.ipynb)"


def contents(lines: Iterable[str]) -> bytes:
    """The page to start from."""
    text = "\n".join(
        [
            "# Start here",
            "Open a chapter, then the lab below it, and run the cells from top to bottom. Change "
            "what you like: nothing overwrites these copies. Where a sentence in a chapter has … "
            "for a number, `make book` has not run yet. Puzzles and your progress need no kernel: "
            "they are pages of the book that `make book` builds.",
            *lines,
            "",
            "What you write yourself belongs in `mine/`: the ring, DDP, ZeRO, FSDP and their test, "
            "a pipeline, split layers, local SGD. In a terminal in the course's folder, "
            "`make grade` grades all of it, and `make grade ONLY=ddp` one file.",
        ]
    )
    cells = [nbformat.v4.new_markdown_cell(text, id="contents")]
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL))).encode()


def files() -> Iterator[tuple[str, bytes, str]]:
    """Name and content of what is copied, and the digest of what it was made from."""
    book, built = Book(ROOT), Built(ROOT)
    pages = [page for page in book.titles if book.runs(page)]
    for page in pages:
        copied = str(nbformat.writes(notebook(book, built, page))).encode()
        yield f"{page}.ipynb", copied, digest(source(ROOT, page).read_bytes())
    start = contents(listed(book))
    yield "START.ipynb", start, digest(start)


def copy(name: str, new: bytes, source: str, copied: dict[str, Any]) -> str:
    """Bring a file to `work/`; what there is to say about it, or nothing.

    A build changes numbers in a page whose source has not changed: that is not worth a word.
    """
    target, last = WORK / name, copied.get(name)
    if isinstance(last, str):  # as it was recorded before: only the copy's digest
        last = {"copy": last, "source": ""}
    if not target.exists() or (last and last["copy"] == digest(target.read_bytes())):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(new)
        copied[name] = {"copy": digest(new), "source": source}
        return f"{name} is up to date again." if last and last["source"] != source else ""
    if last and last["source"] == source:
        return ""
    ours = last["newer"] if last and "newer" in last else []  # the digests of newer ones
    names = (f".newer-{n}" if n > 1 else ".newer" for n in count(1))
    newer = next(
        path
        for path in (target.with_suffix(f"{name}{target.suffix}") for name in names)
        if not path.exists() or digest(path.read_bytes()) in ours
    )
    newer.write_bytes(new)
    copied[name] = {"copy": digest(new), "source": source, "newer": [*ours, digest(new)]}
    return f"{name} has changed since you began with it: the new one is {newer.name}."


def fill() -> list[str]:
    """Copy what is missing; return what there is to say."""
    record = WORK / ".copied.json"
    copied: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    said = [copy(*each, copied) for each in files()]
    mine = WORK / "mine"
    mine.mkdir(parents=True, exist_ok=True)
    front = (ROOT / "lib" / "from_scratch" / "__init__.py").read_text()
    texts = {"__init__": '"""What I write."""\n' + front[front.index("\nfrom __future__") :]}
    for name in LESSON:
        texts[name] = stub((ROOT / "lib" / "from_scratch" / f"{name}.py").read_text())
    refusals = ROOT / "lib" / "from_scratch" / "refusals.py"
    texts["refusals"] = GIVEN + refusals.read_text()  # they stand around what is to be written
    for name, room in {"checks": "project", "capstone": "chapters/capstone"}.items():
        texts[name] = (ROOT / "lib" / "course" / room / "stub.py").read_text()
    for name, text in texts.items():
        if not (mine / f"{name}.py").exists():
            (mine / f"{name}.py").write_text(text)
    aside = record.with_suffix(".new")
    aside.write_text(json.dumps(copied, indent=1))
    aside.replace(record)
    return [each for each in said if each]


def settle(lab: Path = Path(sys.prefix, "share", "jupyter", "lab", "settings")) -> None:
    """Have this environment's JupyterLab open without questions about news and updates."""
    settings = {"fetchNews": "false", "checkForUpdates": False}
    lab.mkdir(parents=True, exist_ok=True)
    overrides = {"@jupyterlab/apputils-extension:notification": settings}
    (lab / "overrides.json").write_text(json.dumps(overrides))


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    print("Copying labs and chapters to work/ ...", flush=True)
    settle()
    for line in fill():
        print(line)
    print("They are in work/. What you write belongs in work/mine/; `make grade` grades it.")
    print("JupyterLab opens work/START.ipynb; Ctrl-C here ends it.", flush=True)
