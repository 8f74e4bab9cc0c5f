"""The path on the landing page, from which the page for instructors takes its minutes."""

import re
from pathlib import Path

import pytest
import yaml

from course.pages.path import (
    FURTHER,
    ROAD,
    cells,
    graded,
    lab_time,
    on_paper,
    path,
    project_lines,
    reading_time,
    road,
)
from course.pages.teaching import PROJECT
from tools.readable import Book
from tools.work import LESSON, ROOT

PATH = path()
LABS = [lab for chapter in PATH for lab in chapter.labs]


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


def test_times_are_what_the_rule_says_to_a_few_minutes() -> None:
    """The rule of the page for instructors; where it does not hold, mend the landing page."""
    times = {c.page: (c.minutes, reading_time(c), 3) for c in PATH}
    times |= {f"lab {lab.name}": (lab.minutes, lab_time(lab), 5) for lab in LABS}
    offenders = [
        f"{name}: {minutes} minutes, by the rule {estimate:.0f}"
        for name, (minutes, estimate, within) in times.items()
        if abs(minutes - estimate) > within
    ]
    assert not offenders, "\n".join(offenders)
    with_labs = [chapter.minutes for chapter in PATH if chapter.labs]
    assert all(minutes % 5 == 0 for minutes in [*with_labs, *(lab.minutes for lab in LABS)])


def test_the_road_leads_from_the_first_page_to_the_end_of_the_ring_within_an_hour() -> None:
    assert tuple(chapter.page for chapter in PATH[: len(ROAD)]) == ROAD
    assert 45 < road() <= 60


def test_a_lab_on_the_road_begins_there_and_says_what_is_for_later() -> None:
    for lab in (lab for chapter in PATH if chapter.page in ROAD for lab in chapter.labs):
        texts = [source for kind, source, _ in cells(lab) if kind == "markdown"]
        parts = re.findall(r"^## .+", "\n".join(texts), re.MULTILINE)
        assert parts[:2] == ["## On the road", FURTHER], lab.name
        (first,) = re.findall(r"; the first (\d+) minutes are on the road\.\*", texts[0])
        assert int(first) == round(lab_time(lab, on_road=True)), lab.name
        (more,) = re.findall(r"What follows takes another (\d+) minutes", "\n".join(texts))
        assert abs(int(first) + int(more) - lab.minutes) < 5, lab.name


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
