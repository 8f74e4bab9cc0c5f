"""The path on the landing page, from which the page for instructors takes its minutes."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from course.pages.path import (
    GRADED,
    LINES,
    RIDDLE,
    WORDS,
    Chapter,
    Lab,
    cells,
    exercises,
    graded,
    on_paper,
    path,
    project_lines,
)
from course.pages.teaching import PROJECT
from tools.readable import Book
from tools.work import LESSON, ROOT

PATH = path()
LABS = [lab for chapter in PATH for lab in chapter.labs]


UNSEEN = {"remove-cell", "remove-input", "hide-input", "hide-cell"}
NO_PROSE = re.compile(r"```.*?```|\$\$.*?\$\$|\{[\w:]+\}|\]\([^)]*\)", re.DOTALL)


def reading_time(chapter: Chapter) -> float:
    """Estimated minutes for a chapter without its exercises; each figure takes one."""
    text = (ROOT / "book" / f"{chapter.page}.md").read_text()
    before, _, rest = text.partition("\n## Exercises")
    text = before + rest[rest.find("\n## ") :]
    cells = re.findall(r"```\{code-cell\}.*\n((?:.*\n)*?)```", text)
    code = [cell for cell in cells if not any(tag in cell for tag in UNSEEN)]
    figures = len(re.findall(r"^    name: fig-|\{lab-figure\}", text, re.MULTILINE))
    return _words([text]) / WORDS + _lines(code) / LINES + figures


def lab_time(lab: Lab) -> float:
    """Estimated minutes for a lab with its exercises."""
    found = cells(lab)
    prose = [source for kind, source, _ in found if kind == "markdown"]
    code = [(source, tags) for kind, source, tags in found if kind == "code"]
    seen = [source for source, tags in code if not UNSEEN & {*tags}]
    folded = sum("hide-cell" in tags for _, tags in code) - len(exercises(lab))
    answers = GRADED * len(exercises(lab)) + RIDDLE * folded
    return _words(prose) / WORDS + _lines(seen) / LINES + answers


def _words(texts: Iterable[str]) -> int:
    return sum(len(re.findall(r"[A-Za-z0-9][\w'-]*", NO_PROSE.sub("", text))) for text in texts)


def _lines(cells: Iterable[str]) -> int:
    return sum(len(cell.splitlines()) for cell in cells)


def test_the_path_is_the_table_of_contents() -> None:
    contents = [
        (part["caption"], chapter["file"], [lab["file"] for lab in chapter.get("sections", [])])
        for part in yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"]
        if part.get("numbered")
        for chapter in part["chapters"]
    ]
    cards = [(c.part, f"book/{c.page}", [f"notebooks/{lab.name}" for lab in c.labs]) for c in PATH]
    assert cards == contents


def test_a_lab_has_its_own_title_there() -> None:
    titles = Book(ROOT).titles
    offenders = [lab for lab in LABS if lab.title != titles[f"notebooks/{lab.name}"]]
    assert not offenders, "\n".join(map(str, offenders))


OPENS = r"# .+\n\n\*\*.+\?\*\*\n\n\*About {} minutes with the exercises?(; .+)?\.\*\n\n\S"


def test_a_lab_opens_with_its_question_and_its_minutes_and_its_imports_are_folded() -> None:
    opened = {lab.name: cells(lab)[:2] for lab in LABS}
    offenders = [
        lab for lab in LABS if not re.match(OPENS.format(lab.minutes), opened[lab.name][0][1])
    ]
    walls = [name for name, (_, (_, _, tags)) in opened.items() if tags != ["hide-input"]]
    assert (offenders, walls) == ([], [])


def test_times_are_what_the_rule_says_to_five_minutes() -> None:
    """The rule of the page for instructors; where it does not hold, mend the landing page."""
    times = {c.page: (c.minutes, reading_time(c)) for c in PATH}
    times |= {lab.name: (lab.minutes, lab_time(lab)) for lab in LABS}
    offenders = [
        f"{name}: {minutes} minutes, by the rule {estimate:.0f}"
        for name, (minutes, estimate) in times.items()
        if abs(minutes - estimate) > 5
    ]
    assert not offenders, "\n".join(offenders)
    with_labs = [chapter.minutes for chapter in PATH if chapter.labs]
    assert all(minutes % 5 == 0 for minutes in [*with_labs, *(lab.minutes for lab in LABS)])


def test_exercises_are_those_of_the_pages() -> None:
    for chapter in PATH:
        text = (ROOT / "book" / f"{chapter.page}.md").read_text()
        assert len(on_paper(chapter)) == text.count("{solution} ") > 0, chapter.page
        assert bool(chapter.labs) == bool(graded(chapter)), chapter.page
    assert graded(PATH[0]) == ["bytes per parameter", "largest"]


def test_lines_to_write_are_counted_without_definitions_and_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course.pages.path.ROOT", tmp_path)
    (tmp_path / "lib" / "from_scratch").mkdir(parents=True)
    code = 'import os\ndef f(x):\n    """Say.\n\n    More."""\n    y = (\n        x)\n    return y'
    (tmp_path / "lib" / "from_scratch" / "ring.py").write_text(code)
    assert project_lines("ring") == 3


def test_every_file_of_the_project_is_somebodys_homework() -> None:
    assert sorted(file for each in PROJECT.values() for file in each) == sorted(LESSON)
    assert {*PROJECT} <= {chapter.page for chapter in PATH if chapter.labs}
