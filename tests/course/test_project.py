"""The project's graders: wrong files get a diagnosis, right ones are in tests/from_scratch."""

from pathlib import Path

import pytest

from course.ask.verdict import Wrong
from course.project import report, submission
from course.project.messages import Message, check_order
from course.project.milestones import MILESTONES
from tests.course.milestones import SCENARIOS, diagnosed, graded, lesson
from tests.course.verdicts import says
from tests.support.ledger import changed

test_a_wrong_file_is_called_wrong_and_told_why = diagnosed(
    *(name for name in MILESTONES if name not in SCENARIOS)
)


def silent(where: str) -> str:
    """The lesson's DDP whose second version does nothing in some places."""
    flat = "flat = flatten_gradients(self.parameters)"
    return changed(lesson("DDP, flat"), rf"{flat} => if {where}:\n    return\n{flat}")


def test_what_is_right_on_two_ranks_is_tried_on_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = graded("DDP, flat", silent("self.comm.ranks > 2"), tmp_path, monkeypatch)
    says('of 3 in case "layers of drawn widths, trained by SGD", .* step 2 is off by', verdict)


def test_a_ring_whose_ranks_all_receive_first_would_hang() -> None:
    orders = [[[Message(sends, 1 - rank, 4)] for sends in (False, True)] for rank in range(2)]
    circle = "2 ranks wait for each other: rank 0 for rank 1, in irecv from rank 1"
    with pytest.raises(Wrong, match=circle):
        check_order("all_reduce", orders)


def test_nothing_written_is_no_mistake_yet() -> None:
    assert report.grade("ring", "no_such_package").status == "not yet"
    assert report.grade("DDP, flat", "no_such_package").status == "not yet"


NOT_SENT = "elif src == self.rank: => elif src == self.rank and (self.rank or work[2] != 2):"
SILENT = {  # a missing call of one rank, and what it leads to
    "call": (
        "DDP, flat",
        silent("self.comm.rank"),
        r"drawn widths.*rank 0 calls all_reduce of [\d,]+ bytes \(ddp.py, line \d+\), "
        "rank 1 end of step 1",
    ),
    "send": (
        "pipeline",
        changed(lesson("pipeline"), NOT_SENT),
        r'in case "GPipe", 2 ranks wait for each other: rank 0 for rank 1, irecv from rank 1 '
        r"\(pipeline.py, line \d+\); rank 1 for rank 0, irecv from rank 0",
    ),
    "receive": (
        "context parallelism",
        changed(lesson("context parallelism"), "[send, receive] => [send, receive][rank == 0 :]"),
        r'in case "pieces in order", 2 ranks wait for each other.*\(context.py, line \d+\)',
    ),
    "end": (
        "DDP, flat",
        silent("self.comm.rank == 0 and [() for _ in iter(int, 1)]"),
        r"did not end within .*\(ddp.py, line \d+, in .*\)",
    ),
}


@pytest.mark.parametrize("missing", SILENT)
def test_ranks_that_hang_are_killed_and_told_who_waits_for_whom(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, text, told = SILENT[missing]
    for timeout in (3, 10, 60):  # on a busy machine ranks may take a while to begin
        monkeypatch.setattr(submission, "TIMEOUT", timeout)
        (place := tmp_path / str(timeout)).mkdir()
        verdict = graded(name, text, place, monkeypatch, 2)
        if ".py, line" in verdict.text:
            break
    says(told, verdict)
