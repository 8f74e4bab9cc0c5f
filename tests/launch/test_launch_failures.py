"""launch when a rank fails: who is blamed, with what, and how soon."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, launch
from minidist.launch import report
from minidist.launch.outcome import Died, Frame, Raised
from minidist.launch.report import failure


class OwnError(Exception):
    pass


def fails(how: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    match how:
        case "raises":
            raise OwnError(7, "here")
        case "raises, leaving the group":  # now the peers' connections break first
            try:
                raise OwnError(7, "here")
            finally:
                dist.destroy_process_group()
                time.sleep(0.1)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segmentation fault":
            ctypes.string_at(8)
        case "exit":
            sys.exit("enough")


MESSAGE = {
    "raises": "raised .*OwnError: .7, 'here'",
    "raises, leaving the group": "raised .*OwnError: .7, 'here'",
    "SIGKILL": "was killed by SIGKILL$",
    "segmentation fault": "was killed by SIGSEGV$",
    "exit": "raised SystemExit: enough",
}


def one_fails_while_its_peers_wait(blamed: int, how: str, collective: str) -> None:
    all_reduce = minidist.all_reduce if collective == "ours" else dist.all_reduce
    tensor = torch.ones(1000)
    all_reduce(tensor)
    if dist.get_rank() == blamed:
        time.sleep(0.05)  # the peers are waiting by now
        fails(how)
    all_reduce(tensor)


@pytest.mark.parametrize(
    ("blamed", "how", "collective"),
    [
        (0, "raises", "ours"),
        (1, "raises, leaving the group", "ours"),
        (2, "raises, leaving the group", "torch's"),
        (0, "SIGKILL", "ours"),
        (2, "segmentation fault", "torch's"),
        (1, "exit", "ours"),
    ],
)
def test_the_rank_that_failed_is_blamed_not_its_peers(
    blamed: int, how: str, collective: str
) -> None:
    with pytest.raises(RankError, match=f"^rank {blamed} {MESSAGE[how]}") as caught:
        launch(one_fails_while_its_peers_wait, 3, blamed, how, collective)
    assert caught.value.ranks == (blamed,)
    assert caught.value.rank == blamed
    if "raises" in how:
        assert "in one_fails_while_its_peers_wait\n    fails(how)" in str(caught.value)
        cause = caught.value.__cause__
        assert isinstance(cause, OwnError)
        assert cause.args == (7, "here")


def test_peers_that_wrap_a_broken_connection_are_not_blamed() -> None:
    def wraps() -> None:
        try:
            minidist.barrier()
            if dist.get_rank() == 1:
                os._exit(3)
            minidist.barrier()
        except minidist.CommunicationError as error:
            raise OwnError("training failed") from error

    said = "^rank 1 left with exit code 3, without returning or raising$"
    with pytest.raises(RankError, match=said):
        launch(wraps, 3)


def test_blame_goes_by_time_and_to_an_echo_only_for_want_of_better() -> None:
    def raised(when: float, echo: bool) -> Raised:
        return Raised(when, [("ValueError: x", [])], None, echo)

    def blamed(*outcomes: Any) -> int:
        error = failure(outcomes)
        assert error
        return error.rank

    assert blamed(raised(3, False), raised(2, False), Died(4, 1)) == 1
    assert blamed(raised(1, True), raised(2, False), None) == 1
    assert blamed(raised(1, True), None, Died(9, -9)) == 2
    assert blamed(raised(2, True), None, raised(1, True)) == 2
    assert Died(0, -40).describe() == "was killed by signal 40"
    assert Died(0, 0).describe().startswith("left with exit code 0")


def test_after_an_echo_the_first_cause_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand() -> None:
        if dist.get_rank() == 0:
            raise minidist.CommunicationError("a rank is gone")
        time.sleep(2)  # longer than GRACE
        raise OwnError("late")

    monkeypatch.setattr(sys.modules[launch.__module__], "ECHO_GRACE", 60.0)
    with pytest.raises(RankError, match=r"^rank 1 raised .*OwnError"):
        launch(stand, 2)


def test_an_exception_keeps_its_class_its_causes_and_its_lines() -> None:
    class LocalError(Exception):
        pass

    def first() -> None:
        {}["missing"]

    def second() -> None:
        try:
            first()
        except KeyError as error:
            raise LocalError("of the test") from error

    with pytest.raises(RankError) as caught:
        launch(second, 1)
    text = str(caught.value)
    assert type(caught.value.__cause__) is LocalError
    assert caught.value.__cause__.args == ("of the test",)
    parts = [
        "rank 0 raised",
        "LocalError: of the test",
        __file__,
        'raise LocalError("of the test") from error',
        "which came from KeyError: 'missing'",
        '{}["missing"]',
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert "rank.py" not in text, "our own calls are no help"


def test_exceptions_that_do_not_travel_are_told_all_the_same() -> None:
    class UnknownHereError(Exception):
        def __reduce__(self) -> Any:
            return exec, ("raise ImportError",)

    def fails(error: type[Exception], *args: object) -> None:
        raise error("of the rank", *(threading.Lock() for _ in args))

    for case in [(ValueError, "with a lock"), (UnknownHereError,)]:
        with pytest.raises(RankError, match=r"(?s)^rank 0 raised .*of the rank.*raise ") as caught:
            launch(fails, 1, *case)
        assert caught.value.__cause__ is None


def sleeps_in_python() -> None:
    time.sleep(1000)


def sleeps_in_c() -> None:
    ctypes.PyDLL(None).sleep(1000)  # and keeps the interpreter's lock


def ignores_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def waits_for_peers() -> None:
    minidist.all_reduce(torch.ones(10))


def digs(depth: int = 150) -> None:
    digs(depth - 1) if depth else time.sleep(1000)


def receives_what_nobody_sends() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), src=1)
    time.sleep(100)


def move_slowly() -> None:
    """As over a slow link, and as where one rank computes; then as where all sleep."""
    for _ in range(60):
        time.sleep(0.05)
        dist.barrier()
    end = time.monotonic() + 3 * (dist.get_rank() == 1)
    while time.monotonic() < end:
        torch.ones(100).sum()
    dist.barrier()
    time.sleep(3)


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell whether a process moves")
def test_ranks_that_stand_still_are_told_before_the_deadline_and_those_that_move_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "QUIET", 0.5)
    launch(move_slowly, 2)
    assert capsys.readouterr().out == ""
    with pytest.raises(RankError) as caught:
        launch(receives_what_nobody_sends, 2, timeout=15)
    said = capsys.readouterr().out
    assert said.startswith("launch: nothing has moved for a while; after 15 s it is ended. Where")
    assert said.count("launch:") == 1
    assert "dist.recv(torch.zeros(1), src=1)" in said
    assert "time.sleep(100)" in said
    assert "dist.recv(torch.zeros(1), src=1)" in str(caught.value), "and again at the deadline"


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell whether a process moves")
def test_ranks_that_wait_for_one_that_has_returned_are_not_left_until_the_deadline() -> None:
    def skips() -> None:
        for step in range(3):
            if (dist.get_rank(), step) != (1, 2):
                minidist.all_reduce(torch.ones(2))

    with pytest.raises(RankError) as caught:
        launch(skips, 3, timeout=1000)
    said = "ranks 0, 2 did not end, and nothing moves any more\nrank 1 had returned; ranks 0, 2 may"
    assert str(caught.value).startswith(said)
    assert "minidist.all_reduce(torch.ones(2))" in str(caught.value)

    def waits_for_one_that_sleeps() -> None:
        group = dist.new_group([0, 2])
        if dist.get_rank() == 2:
            time.sleep(8)
        if dist.get_rank() != 1:
            dist.barrier(group)

    launch(waits_for_one_that_sleeps, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell whether a process moves")
def test_one_rank_that_waits_for_one_is_named_and_a_call_that_compares_is_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "QUIET", 0.5)
    monkeypatch.setattr(report, "STILL", 3)

    def other_shapes() -> None:
        dist.all_reduce(torch.ones(2 + dist.get_rank()))

    with pytest.raises(RankError) as caught:
        launch(other_shapes, 2)
    assert str(caught.value).startswith(
        "rank 1 did not end, and nothing moves any more\n"
        "rank 0 had returned; rank 1 may wait for it\n"
        "if all ranks made this call, their shapes may differ: minidist.all_reduce compares and "
        "names them\n\n  File"
    )
    assert capsys.readouterr().out == ""


def frame(file: str, name: str, line: int = 1) -> Frame:
    return (file, line, name, None)


def test_where_ranks_stand_is_in_a_learners_lines_and_a_single_rank_is_named() -> None:
    grader = str(Path(report.OURS).parent / "course" / "ask" / "ranks.py")
    torchs = frame(report.C10D, "all_reduce")
    calls = [frame(grader, "graded"), frame("mine/ring.py", "ring"), frame(grader, "exchange")]
    assert report.where({2: [*calls, torchs]}, named=True)[:2] == [
        "rank 2:",
        '  File "mine/ring.py", line 1, in ring',
    ]
    assert "exchange" not in "".join(report.where({2: [*calls, torchs]}))
    assert "exchange" in "".join(report.where({2: [calls[0], calls[2]]})), "there are no others"


def test_of_an_exception_that_fills_a_book_both_ends_are_shown() -> None:
    def raises() -> None:
        raise ValueError("first" + "x" * 10**7 + "last")

    with pytest.raises(RankError, match=r"first.* 9,999,\d+ characters left out .*last") as caught:
        launch(raises, 2)
    assert len("".join(traceback.format_exception(caught.value))) < 9000
    assert "x" * 10**7 in caught.value.details


def test_a_folder_for_temporary_files_that_is_full_or_has_a_long_name_is_named(
    tmp_path: Path,
) -> None:
    def fills_it() -> None:
        def write_bytes(*_: object) -> NoReturn:
            raise OSError(28, "No space left on device")

        Path.write_bytes = write_bytes  # type: ignore[method-assign]

    with pytest.raises(RankError, match=f"could not write its report: is {gettempdir()} full"):
        launch(fills_it, 1)
    (folder := tmp_path / ("long" * 30)).mkdir()
    code = "from minidist import launch; launch(int, 1)"
    environ = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("RuntimeError: TMPDIR: expected a path of at most 75 characters"), said


def test_a_hang_ends_at_the_deadline_and_tells_where_each_rank_stood() -> None:
    stands = [sleeps_in_python, sleeps_in_c, int, ignores_signals, waits_for_peers, digs]

    def stand() -> None:
        stands[dist.get_rank()]()

    for timeout in (4, 30):  # on a busy machine ranks may take a while to begin
        with pytest.raises(RankError) as caught:
            launch(stand, len(stands), timeout=timeout)
        error, text = caught.value, str(caught.value)
        if all(f"in {stands[rank].__name__}\n" in error.details for rank in error.ranks):
            break
    assert error.ranks == (0, 1, 3, 4, 5)
    assert text.startswith(
        f"ranks 0, 1, 3, 4, 5 did not end within {timeout} s\nrank 2 had returned;"
    )
    assert len(text.splitlines()) <= 15
    _, *stacks = error.details.split("Where rank ")
    for rank, stack in zip(error.ranks, stacks, strict=True):
        assert stack.startswith(f"{rank} stood:\n")
        assert f"in {stands[rank].__name__}\n" in stack
        if stands[rank] is not digs:  # its outer calls do not fit
            assert "in stand\n" in stack
            assert "rank.py" not in stack
    assert error.__cause__ is None


class SlowToArrive:
    def __reduce__(self) -> Any:
        return time.sleep, (4,)


@pytest.mark.timeout(90)
def test_the_time_of_a_call_counts_from_when_all_ranks_have_begun_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert launch(lambda _: dist.get_rank(), 2, SlowToArrive(), timeout=3) == [0, 1]
    monkeypatch.setattr(
        sys.modules["minidist.launch.rank"], "START", 10_000
    )  # the test would never end
    with pytest.raises(RankError, match=r"^ranks 0, 1 did not end within 0.5 s"):
        launch(sleeps_in_python, 2, timeout=0.5)


def test_ranks_in_the_same_place_are_named_together_and_the_odd_one_first() -> None:
    def wrong_order() -> None:
        tensor = torch.ones(3)
        if dist.get_rank() == 1:
            minidist.broadcast(tensor, 0)
        minidist.all_reduce(tensor)

    def sleeps() -> None:
        if dist.get_rank() == 0:
            time.sleep(1000)
        minidist.barrier()

    with pytest.raises(RankError, match=r"^ranks? .* raised .*MismatchError") as caught:
        launch(wrong_order, 4)
    place, file = "  {}, line {}, in {}\n    {}", f'File "{__file__}"'
    first = wrong_order.__code__.co_firstlineno
    odd = place.format(file, first + 3, "wrong_order", "minidist.broadcast(tensor, 0)")
    others = place.format(file, first + 4, "wrong_order", "minidist.all_reduce(tensor)")
    said = str(caught.value)
    assert f"\n\nrank 1:\n{odd}\nrank" in said
    assert said.endswith(others)
    assert "collectives/tensor.py" in caught.value.details
    assert "collectives/tensor.py" not in said, "the library's own calls are no help"
    for timeout in (4, 30):
        with pytest.raises(RankError) as caught:
            launch(sleeps, 2, timeout=timeout)
        if "rank 1" in (said := str(caught.value)):
            break
    assert said.index("rank 0:\n") < said.index("time.sleep(1000)") < said.index("rank 1:\n")


def test_code_that_skips_a_bad_batch_does_not_skip_a_disagreement() -> None:
    def skips() -> None:
        for width in (3, 3 + dist.get_rank(), 3):
            with suppress(ValueError):
                minidist.all_reduce(torch.ones(width))

    with pytest.raises(RankError, match=r"^ranks 0, 1 raised .*MismatchError: .* tensor's shape"):
        launch(skips, 2)


def test_a_long_message_is_cut_and_its_rest_is_in_the_details() -> None:
    def fails() -> None:
        raise OwnError("\n".join(map(str, range(100))))

    with pytest.raises(RankError) as caught:
        launch(fails, 1)
    assert len(str(caught.value).splitlines()) <= 15
    assert "lines more are in the error's `details`" in str(caught.value)
    assert "\n99\n" in caught.value.details


def test_a_rank_that_fails_is_blamed_at_once_though_another_hangs() -> None:
    def stand() -> None:
        if dist.get_rank() == 1:
            raise OwnError("here")
        sleeps_in_c()

    with pytest.raises(RankError, match=r"^rank 1 raised .*OwnError"):
        launch(stand, 3, timeout=10_000)  # the test would never end
