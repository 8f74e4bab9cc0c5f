"""`make lab`: a folder to work in, of which nothing is ever overwritten; `make handout`."""

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course.chapters.capstone.answers import ways
from course.project.report import TARGETS, lines
from course.submissions.labs import cells_in, labs, python
from tools import handout, readable, site, work


def lab(text: str, *tags: str) -> str:
    """A lab with a cell, and another with tags."""
    title = {"id": "title", "cell_type": "markdown", "source": "# Lab: the ring", "metadata": {}}
    tagged = title | {"id": "2", "source": "tagged", "metadata": {"tags": list(tags)}}
    cells: list[dict[str, Any]] = [title, title | {"id": "1", "source": text}, tagged]
    cells = cells if tags else cells[:2]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}) + "\n"


CHAPTER = """---
jupytext: {text_representation: {format_name: myst}}
kernelspec: {name: python3}
---
# The ring

See [the next](ddp.md).

```{code-cell} python
print(1)
```
"""


TOC = """
format: jb-book
root: book/glossary
parts:
  - caption: Collectives
    numbered: true
    chapters: [{file: book/ring, sections: [{file: notebooks/ring}]}]
  - caption: Data parallel
    numbered: true
    chapters: [{file: book/ddp}]
  - caption: Reference
    chapters: [{file: book/puzzles}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with one lab, and the lesson."""
    course = tmp_path / "course"
    for folder in ("notebooks", "book", "lib"):
        (course / folder).mkdir(parents=True)
    (course / "notebooks" / "ring.ipynb").write_text(lab("first"))
    (course / "book" / "ring.md").write_text(CHAPTER)
    (course / "book" / "ddp.md").write_text(CHAPTER.replace("The ring", "DDP"))
    (course / "book" / "glossary.md").write_text("# Glossary")
    (course / "book" / "puzzles.md").write_text(CHAPTER.replace("The ring", "Puzzles"))
    (course / "_toc.yml").write_text(TOC)
    for package in ("from_scratch", "course"):
        (course / "lib" / package).symlink_to(work.ROOT / "lib" / package)
    monkeypatch.setattr(work, "ROOT", course)
    monkeypatch.setattr(work, "WORK", course / "work")
    return course


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def test_a_lab_is_copied_once_and_kept(place: Path) -> None:
    assert work.fill() == []
    source, mine = (place / each / "notebooks" / "ring.ipynb" for each in ("", "work"))
    assert sources(mine) == ["# Lab: the ring", "first"]
    source.write_text(lab("second", "claim-A1", "remove-cell"))
    assert work.fill() == ["notebooks/ring.ipynb is up to date again."]
    assert sources(mine) == ["# Lab: the ring", "second"], "without what only the book needs"
    mine.write_text("what I tried")
    assert work.fill() == []
    source.write_text(lab("third", "solution-x"))
    (said,) = work.fill()
    assert said.endswith("the new one is ring.newer.ipynb.")
    assert mine.read_text() == "what I tried"
    newer = sources(mine.with_suffix(".newer.ipynb"))
    assert newer == ["# Lab: the ring", "third", "tagged"]
    assert work.fill() == [], "it is said once"


def test_nothing_is_lost_over_five_updates_with_edits_in_between(place: Path) -> None:
    work.fill()
    source, mine = (place / each / "notebooks" / "ring.ipynb" for each in ("", "work"))
    edited: dict[Path, str] = {}

    def edit(path: Path, text: str) -> None:
        path.write_text(text)
        edited[path] = text

    edit(mine, "mine")
    for update in range(5):
        source.write_text(lab(f"update {update}"))
        (said,) = work.fill()
        new = mine.with_name(said.split()[-1].removesuffix("."))
        assert sources(new)[1] == f"update {update}"
        if update in (0, 2):
            edit(new, f"mine too, {update}")
    assert {path: path.read_text() for path in edited} == edited
    names = sorted(path.name for path in mine.parent.glob("ring.newer*"))
    assert names == ["ring.newer-2.ipynb", "ring.newer-3.ipynb", "ring.newer.ipynb"]
    assert sources(mine.with_name("ring.newer-3.ipynb"))[1] == "update 4"


def test_numbers_of_a_new_build_come_into_a_copy_that_nobody_has_touched(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fill()
    mine, built = place / "work" / "book" / "ring.ipynb", work.notebook

    def later(*args: Any) -> nbformat.NotebookNode:
        page = built(*args)
        page.cells[0].source += " 2 ms"
        return page

    monkeypatch.setattr(work, "notebook", later)
    assert work.fill() == [], "not worth a word"
    assert sources(mine)[0].endswith(" 2 ms")
    mine.write_text("what I tried")
    assert work.fill() == []
    assert mine.read_text() == "what I tried"
    assert not mine.with_suffix(".newer.ipynb").exists()


def test_a_copy_of_which_only_the_digest_is_known_is_kept_or_renewed(place: Path) -> None:
    """As an earlier version of this recorded it."""
    work.fill()
    record = place / "work" / ".copied.json"
    old = {name: each["copy"] for name, each in json.loads(record.read_text()).items()}
    record.write_text(json.dumps(old))
    (place / "work" / "book" / "ddp.ipynb").write_text("what I tried")
    said = work.fill()
    assert "notebooks/ring.ipynb is up to date again." in said
    assert any("ddp.newer.ipynb" in each for each in said)
    assert work.fill() == []


def test_jupyterlab_asks_nothing_about_news(tmp_path: Path) -> None:
    work.settle(tmp_path / "settings")
    (told,) = json.loads((tmp_path / "settings" / "overrides.json").read_text()).values()
    assert told == {"fetchNews": "false", "checkForUpdates": False}


def test_the_start_has_the_books_numbers_and_leads_to_every_page_that_runs(place: Path) -> None:
    work.fill()
    page = nbformat.read(place / "work" / "START.ipynb", as_version=4)
    assert page.metadata.kernelspec.name == "python3", "or JupyterLab asks for one"
    links = [line.strip() for line in page.cells[0].source.splitlines() if "](" in line]
    assert links == [
        "1. [The ring](book/ring.ipynb)",
        "- [Lab: the ring](notebooks/ring.ipynb)",
        "2. [DDP](book/ddp.ipynb)",
    ], "the editors and stars of puzzles are there only in the book"
    assert not (place / "work" / "book" / "puzzles.ipynb").exists()


def test_stubs_have_all_names_of_the_lesson_and_nothing_in_them(place: Path) -> None:
    def defined(path: Path) -> list[Any]:
        tree = ast.walk(ast.parse(path.read_text()))
        return [node for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)]

    work.fill()
    for name in work.LESSON:
        lesson = defined(place / "lib" / "from_scratch" / f"{name}.py")
        stub = defined(place / "work" / "mine" / f"{name}.py")
        assert [each.name for each in stub] == [each.name for each in lesson]
        functions = [each for each in stub if isinstance(each, ast.FunctionDef)]
        assert {ast.unparse(each.body[-1]) for each in functions} == {"raise NotImplementedError"}
        assert all(len(each.body) <= 2 for each in functions)
    own = place / "work" / "mine" / "ddp.py"
    own.write_text("mine = 1\n")
    work.fill()
    assert own.read_text() == "mine = 1\n"


def test_the_grader_says_that_nothing_is_there_yet(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fill()
    monkeypatch.syspath_prepend(str(place / "work"))
    monkeypatch.chdir(place)
    *said, next_step = lines("mine")
    assert len(said) == len(TARGETS)
    assert all("Not yet" in each for each in said), said
    assert "In work/mine/ring.py write all_reduce" in next_step
    for name in [each for each in sys.modules if each.split(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A handout."""
    target = tmp_path_factory.mktemp("handout") / "class"
    handout.write(target)
    return target


def bodies(source: str) -> Iterator[str]:
    """What its functions do, whatever they are called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield "\n".join(map(ast.unparse, node.body[bool(ast.get_docstring(node)) :]))
        elif isinstance(node, ast.Lambda):
            yield f"return {ast.unparse(node.body)}"


def test_a_handout_has_every_page_and_no_solution(given: Path) -> None:
    assert not (given / "tests").exists()
    assert (given / "tools" / "venv.sh").exists()
    offenders = []
    for whole in [*work.ROOT.glob("notebooks/*.ipynb"), *work.ROOT.glob("book/*.md")]:
        text = (given / whole.relative_to(work.ROOT)).read_text()
        if whole.suffix == ".ipynb":
            tags = {tag for c in json.loads(text)["cells"] for tag in c["metadata"].get("tags", [])}
            kinds = {tag.partition("-")[0] for tag in tags}
            right = "exercise" in kinds and "solution" not in kinds and "# Solution" not in text
        else:
            right = "{solution}" not in text and "spoiler" not in text
            right &= text.count("{exercise}") == whole.read_text().count("{exercise}")
        offenders += [] if right else [whole.name]
    assert not offenders, "\n".join(offenders)
    with pytest.raises(FileExistsError, match="class is there already"):
        handout.write(given)


def test_no_answer_to_an_exercise_is_left_anywhere_in_a_handout(given: Path) -> None:
    lesson = given / "lib" / "from_scratch"  # which stays, because chapters print it
    left = [path.read_text() for path in given.rglob("*.py") if lesson not in path.parents]
    copies = [
        cell for lab in given.glob("notebooks/*.ipynb") for cell in cells_in(lab.read_bytes())
    ]
    left += map(python, copies)
    answers = [(each.name, each.read_text()) for each in Path(ways.__file__).parent.glob("*.py")]
    answers += [
        (lab, python(cell))
        for lab, cells in labs().items()
        for cell in cells
        if any(tag.startswith("solution-") for tag in cell.tags)
    ]
    told = [(where, each) for where, source in answers for each in bodies(source)]
    assert len(told) > 40
    there = {each for source in left for each in bodies(source)}
    offenders = [f"{where}: {each}" for where, each in told if each in there]
    assert not offenders, "\n".join(offenders)


def test_nothing_in_a_handout_leads_to_an_answer_or_to_the_whole_book(given: Path) -> None:
    texts = [path for path in given.rglob("*") if path.suffix in (".py", ".ipynb", ".md")]
    assert [path for path in texts if "capstone.answers" in path.read_text()] == []
    told = ("or the solution", "or else the solution")
    notebooks = [path.read_text() for path in texts if path.suffix == ".ipynb"]
    assert not any(each in lab for each in told for lab in notebooks)
    assert "make test" not in (given / "README.md").read_text(), "it has no tests"
    config = 'repository: {url: "https://x.org/a"}\nhtml: {baseurl: "https://x.org/", use: false}\n'
    without = 'repository: {url: ""}\nhtml: {baseurl: "", use: false}\n'
    assert handout.without_addresses(config) == without
    assert site.published(given) is None


def test_a_handouts_pages_define_what_they_use(given: Path) -> None:
    """As notebooks, which `make lab` makes of them."""
    book, built, offenders = readable.Book(given), readable.Built(given), []
    for page in filter(book.runs, book.titles):
        cells = readable.notebook(book, built, page).cells
        both = [readable.names(cell) for cell in cells if cell.cell_type == "code"]
        defined, used = (set().union(*(each[k] for each in both)) for k in (0, 1))
        offenders += [f"{page}: {name}" for name in used - defined - {*dir(builtins)}]
    assert not offenders, "\n".join(offenders)


def test_jupyterlab_shows_figures_as_large_as_the_book() -> None:
    makefile = (work.ROOT / "Makefile").read_text()
    assert "--custom-css" in makefile
    (settings,) = re.findall(r"--ServerApp.tornado_settings='(.+?)'", makefile)
    (folder,) = json.loads(settings)["static_custom_path"]
    shown = (work.ROOT / folder / "custom.css").read_text()
    book = (work.ROOT / "book" / "_static" / "house.css").read_text()
    (enlarged,) = re.findall(r"100%, ([\d.]+) \* var\(--drawn\)", book)
    assert f"zoom: {enlarged};" in shown
