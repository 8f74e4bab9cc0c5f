"""The page for instructors: its tables, and meetings that run what labs have."""

import json
import re
from collections.abc import Iterator

import pytest

from course.chapters.disagree.exercises import first_difference
from course.pages.teaching import COURSE, SHORT, chapters, minutes, schedule, weeks, work_of
from tests.support.ledger import WRONG
from tools.work import ROOT

PAGE = (ROOT / "book" / "teaching.md").read_text()
MEETINGS = re.findall(r"^\*\*Week \d+: (.+?)\.\*\*\n\n((?:- .+\n)+)", PAGE, re.MULTILINE)


def test_minutes_are_those_of_chapters_of_exercises_and_of_labs() -> None:
    ring = COURSE["ring"]
    labs = sum(lab.minutes for lab in ring.labs)
    assert minutes(["ring", "lab ring"]) == ring.minutes + labs
    assert work_of("ring") == ring.minutes + 5 + labs
    assert work_of("ring ddp") == work_of("ring") + work_of("ddp")


def test_tables_have_a_row_for_each_chapter_week_and_session() -> None:
    assert chapters().data.count("\n| [") == len(COURSE)
    assert "[The ring](ring.html)" in chapters().data
    assert "../notebooks/ring.html" in schedule(SHORT).data
    plan = {"collectives ring": "write the ring", "which": "choose"}
    first, second = weeks(plan).data.splitlines()[2:]
    assert first.startswith("| 1 | [Collectives](collectives.html); [The ring](ring.html) | write")
    assert f"| {work_of('collectives ring')} = " in first
    assert re.search(r"\| \d+ = \d+ \+ \d+ \+ \d+ \| \d+ \|$", first), "lines of ring.py"
    assert second.endswith(" |  |")


def headings(labs: list[str]) -> Iterator[str]:
    """Headings of labs, and what stands in bold where a paragraph begins."""
    for lab in labs:
        for cell in json.loads((ROOT / "notebooks" / f"{lab}.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield from re.findall(r"^(?:#+ |\*\*)(.+)", "".join(cell["source"]), re.MULTILINE)


@pytest.mark.parametrize(("name", "text"), MEETINGS, ids=[name for name, _ in MEETINGS])
def test_a_meeting_fills_its_minutes_and_runs_what_labs_have(name: str, text: str) -> None:
    times = [tuple(map(int, each)) for each in re.findall(r"^- \*\*(\d+)–(\d+)\.", text, re.M)]
    starts, ends = zip(*times, strict=True)
    assert (0, *ends) == (*starts, 90)
    there = [*headings(re.findall(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", text))]
    quoted = re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)
    missing = [each for each in quoted if not any(found.startswith(each) for found in there)]
    assert quoted
    assert not missing, f"{name}: {missing}"


MISTAKES = [  # what the page says that students do → its ledger, and what stands there
    ("confuse `all_to_all` with `all_gather`", "collectives", '"all_to_all" => "D": "all_gather"'),
    ("sum their own parts", "collectives", "torch.stack(received).sum(0) => sum(inputs)"),
    ("add in the second phase", "ring", "copy_(received) => add_(received)"),
    ("overwrite in the first", "ring", "+= received => [(rank - 2 - step) % ranks].copy_("),
    ("swap left and right", "ring", "right, left = => left, right ="),
    ("take $N$ steps", "ring", "for step in range(ranks): received = exchange"),
    ("rebind `chunks[i]`", "ring", r"every message is right, but .*chunks\[\.\.\.\] in place"),
    ("divide twice or never", "ddp", "divided twice"),
    ("divide twice or never", "ddp", "parameter.grad /= dist.get_world_size() => pass"),
    ("all-reduce the parameter that the hook receives", "ddp", "minidist.all_reduce(parameter.dat"),
    ("forget the broadcast", "ddp", "minidist.broadcast(parameter.detach(), 0) => pass"),
    ("reduce in an order of the rank's own", "ddp", "every[rank:] + every[:rank]"),
]  # fmt: skip


def test_mistakes_in_meetings_are_those_that_graders_are_tested_with() -> None:
    ledgers = {
        name: re.sub(r"\s+", " ", (WRONG / "labs" / f"{name}.txt").read_text().replace("\\n", " "))
        for _, name, _ in MISTAKES
    }
    offenders = [row for row in MISTAKES if row[0] not in PAGE or row[2] not in ledgers[row[1]]]
    assert not offenders, "\n".join(map(str, offenders))
    slips = " ".join(first_difference.table().slips)
    for word in ("Compare shapes", "never comes to a call", "Those are the others"):
        assert word in slips
    assert "overlook shapes, or a rank that never came, or blame the majority" in PAGE


def test_the_tutor_asks_first_and_gives_no_code() -> None:
    (text,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    rules = re.findall(r"^\d\. (.+)", text, re.MULTILINE)
    assert "predict" in rules[0]
    assert rules[1].startswith("Never write code")
    assert len(rules) == 6
