"""Each puzzle: what it begins with, our solution, and wrong answers with their diagnosis."""

import ast
import json
import re
from operator import itemgetter
from typing import Any

import pytest

from course.interactive.sliders import KNOWN
from course.puzzles import training
from course.puzzles.catalog import EDITABLE, PUZZLES
from course.puzzles.judge import Output, run
from course.puzzles.tasks import LINKS, Puzzle
from tests.puzzles.answers import LOST, STUBS, WRONG
from tools.work import ROOT

each_puzzle = pytest.mark.parametrize("name", PUZZLES)
LOOP = "def all_reduce(ranks):\n    while True:\n        yield []\n"


def task_of(name: str) -> Any:
    """As a page has it."""
    return json.loads(json.dumps(EDITABLE[name].task))


def judged(name: str, code: str) -> Any:
    return run(code, task_of(name))


def earned(report: Any) -> int:
    return sum(each for _, each in report["marks"])


def test_there_are_twelve_and_each_has_hints_wrong_answers_and_three_stars() -> None:
    assert len(PUZZLES) == 12 == len(WRONG) == len(STUBS)
    for name, puzzle in PUZZLES.items():
        assert puzzle.hints
        assert puzzle.solution
        assert len(WRONG[name]) >= 4
        assert len(task_of(name)["marks"]) == 3


@each_puzzle
def test_the_solution_has_all_stars(name: str) -> None:
    report = judged(name, PUZZLES[name].solution)
    assert report["right"]
    assert earned(report) == 3, report["marks"]


@each_puzzle
def test_what_it_begins_with_is_not_the_solution(name: str) -> None:
    report = judged(name, PUZZLES[name].stub)
    says, stars = STUBS[name]
    assert re.search(says, " ".join(report["says"]))
    assert (earned(report), report["right"]) == (stars, stars > 0)


@each_puzzle
def test_a_wrong_answer_has_its_diagnosis(name: str) -> None:
    for code, says in WRONG[name]:
        report = judged(name, code)
        assert not report["right"], code
        assert re.search(says, " ".join(report["says"])), code
        assert earned(report) == 0


@each_puzzle
def test_a_lost_star_says_why(name: str) -> None:
    for code, says in [*LOST[name], (PUZZLES[name].stub, "")]:
        report = judged(name, code)
        lost = [text for text, earned in report["marks"] if not earned]
        assert re.search(says, "; ".join(lost)), lost
        if report["right"]:
            assert all(re.search(r": (with \d+ ranks|yours)", text) for text in lost), lost
            assert 0 < len(lost) < 3


@pytest.mark.parametrize("name", [name for name in EDITABLE if name not in PUZZLES])
def test_what_is_to_play_with_runs(name: str) -> None:
    report = judged(name, EDITABLE[name].stub)
    assert report["right"]
    assert report["drawn"]["ranks"] == 4
    assert [row[0] for row in report["table"]["rows"]] == ["yours", "the ring", "at least"]


def test_the_ring_to_play_with_is_the_chapters() -> None:
    cells = re.findall(
        r"```\{code-cell\} ipython3\n(.*?)```", (ROOT / "book/ring.md").read_text(), re.S
    )
    (chapter,) = (cell for cell in cells if cell.startswith("def ring("))
    theirs, ours = ast.parse(chapter).body[0], ast.parse(EDITABLE["ring"].stub).body[0]
    assert ast.dump(theirs) == ast.dump(ours)


def test_links_have_the_names_of_the_sliders() -> None:
    assert {1 / beta: name for name, (_, beta) in LINKS.items()}.items() <= {**KNOWN}.items()


def test_who_may_says_how_many_chunks_there_are() -> None:
    code = "chunks = {}\ndef ring(ranks):\n    yield [Send(r, r ^ 1, 0, True, 3) for r in (0, 1)]\n"
    assert "ends without" in judged("ring", code.format("lambda ranks: 3"))["says"][1]
    assert "There is no chunk 2" in judged("ring", code.format(2))["says"][1]
    assert judged("ring", code.format("'a'"))["says"] == [
        "chunks is 'a': it has to be a number from 1 to 1000."
    ]
    assert (
        "There is no chunk 2"
        in judged("all_reduce", code.format(3).replace("ring", "all_reduce"))["says"][1]
    )


@pytest.mark.parametrize(
    ("code", "says", "line"),
    [
        ("def ring(ranks)\n    yield []\n", "Python cannot read it: expected ':'.", 1),
        ("def ring(ranks):\n    yield [Sent(0)]\n", "NameError: name 'Sent' is not defined", 2),
        ("def ring(ranks):\n    return f(ranks)\n\ndef f(n):\n    return [][n]\n", "IndexError", 5),
        ("def f(n):\n    for t in (\n        1,\n    ):\n        yield []\n         x = 1\ny = 2\n",
         "Python cannot read it: unexpected indent.", 6),
        ("  x = 1\ny = 2\n", "Python cannot read it: unexpected indent.", 1),
        ("import nothing\n", "ModuleNotFoundError: No module named 'nothing'", 1),
        ("x = 1 / 0\n", "ZeroDivisionError", 1),
        ("def ring(ranks):\n    return ring(ranks)\n", "RecursionError: a function calls", 2),
        ("def ring(ranks):\n    yield [Send(0)]\n", "TypeError", 2),
        (LOOP.replace("all_reduce", "ring").replace("[]", "[Send(0, 1, 0, False)]"),
         "It yields more than 1000 steps. Does its loop end?", None),
    ],
)  # fmt: skip
def test_an_error_is_shown_with_its_line(code: str, says: str, line: int | None) -> None:
    report = judged("ring", code)
    assert says in " ".join(report["says"])
    assert report["line"] == line


def test_what_is_printed_is_kept_up_to_a_limit() -> None:
    report = judged("ring", EDITABLE["ring"].stub + "print('a', 1, sep='-')\nprint()\n")
    assert (report["output"], report["more"]) == ("a-1\n\n", 0)
    report = judged("ring", "print('x' * 10_000_000)\n")
    assert report["output"] == "x" * Output.MOST
    assert report["more"] == 10_000_001 - Output.MOST
    report = judged("ring", f"for _ in range(3):\n    print('x' * {Output.MOST // 2})\n")
    assert (len(report["output"]), report["more"]) == (Output.MOST, Output.MOST // 2 + 3)


def test_lanes_show_when_gradients_are_ready_and_when_a_place_is_free() -> None:
    lanes = dict(judged("buckets", PUZZLES["buckets"].solution)["lanes"]["rows"])
    drawn = [(text, end) for _, _, end, text in lanes["backward"]]
    assert drawn == sorted(((name, at) for name, at, _ in training.LAYERS), key=itemgetter(1))
    works = ("gather(0)", "gather(1)", "forward(0)", "free(0)", "gather(2)")
    code = "def step(units):\n" + "".join(f"    yield {work}\n" for work in works)
    lanes = dict(judged("fsdp", code)["lanes"]["rows"])
    assert lanes["compute"][0][2] == lanes["network"][2][1] == 5, "after forward, not before"


def test_a_handout_has_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.handout import LEFT_OUT

    assert "lib/course/puzzles/answers/" in LEFT_OUT
    missing = PUZZLES["broadcast"]._replace(name="not-there")
    assert isinstance(missing, Puzzle)
    assert missing.solution == ""
