"""What the records of ranks that hang, disagree or die say about them."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import minidist
from minidist.diagnose import __main__ as command
from minidist.diagnose import record, report, table
from minidist.diagnose import recorder as recorder_module
from minidist.diagnose.recorder import KEPT, LINE, STACK_SIGNAL, Recorder
from minidist.diagnose.records import Rank, RecordedCall, read
from minidist.diagnose.verdict import sentence
from minidist.errors import CommunicationError
from tests.support.cases import alike
from tests.support.processes import wait_until
from tests.support.refusals import all_refused


def watched(
    fn: Callable[..., Any], ranks: int, folder: Path, until: Callable[[list[Rank]], bool]
) -> tuple[str, list[Rank]]:
    """The report on ranks that run `fn(folder)`, in the state that they come to by themselves."""
    found: list[Any] = []

    def watch() -> None:
        reached = lambda: len(list(folder.glob("*.calls"))) == ranks and until(read(folder))  # noqa: E731
        if wait_until(reached, 300):  # else the ranks have not come there
            found.extend([report(folder, 0.3), read(folder)])
        (folder / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with suppress(minidist.RankError):  # Gloo may end a process for what its peers have sent
        minidist.launch(fn, ranks, folder, timeout=600)
    watcher.join()
    assert found, "the ranks did not come where they should"
    return found[0], found[1]


def load_data(go: Path) -> None:
    while not go.exists():
        time.sleep(0.01)


def comes_late(folder: Path) -> None:
    x = torch.ones(3)
    with record(folder):
        for _ in range(KEPT):  # their lines are used again
            minidist.all_reduce(x)
        model = DistributedDataParallel(torch.nn.Linear(3, 2))
        model(x).sum().backward()
        minidist.all_reduce(x, async_op=True).wait()  # type: ignore[union-attr]
        with torch.inference_mode():
            dist.all_reduce(torch.ones(5))
        if dist.get_rank() == 1:
            load_data(folder / "go")
        dist.all_reduce(x)
        with pytest.raises(RuntimeError, match=r"rank \d: diagnose.record: another"):
            record(folder).__enter__()
    dist.all_reduce(x)  # not recorded any more


@pytest.mark.claim("F3")
def test_a_rank_that_never_comes_is_named_with_the_place_where_it_is(tmp_path: Path) -> None:
    def reached(ranks: list[Rank]) -> bool:
        late = [name for _, _, name, _ in ranks[1].stack]
        return "load_data" in late and all(r.calls[-1].state == "entered" for r in ranks[::2])

    text, (first, late, _) = watched(comes_late, 3, tmp_path, reached)
    number = first.calls[-1].number
    said, table, stacks = text.split("\n\n")
    asks = load_data.__code__.co_firstlineno + 1  # and sleeps in the line after it
    where = rf"it is in load_data at test_diagnose.py:({asks}|{asks + 1})"
    assert re.fullmatch(
        rf"rank 1 has not come to all_reduce #{number} for \d+\.\d s: {where}", said
    )
    assert table.splitlines()[-1].split()[-3:] == ["entered", "-", "entered"]
    assert stacks.startswith("rank 1:\n")
    assert "ranks 0, 2:\n" in stacks
    assert len(first.calls) == KEPT
    after = ["all_gather", "broadcast", "broadcast", "all_reduce", "minidist.all_reduce"]
    assert [call.name for call in late.calls[-7:]] == ["minidist.all_reduce", *after, "all_reduce"]
    assert [call.tensor for call in late.calls[-3:]] == [
        "float32 (8,)",  # DDP's bucket, from C++
        "float32 (3,)",
        "float32 (5,)",
    ]
    assert {call.state for call in first.calls[:-1] + late.calls} == {"left"}
    states = [each.state for each in read(tmp_path)]
    assert states == ["returned"] * 3
    assert read(tmp_path)[0].calls[-1].number == number
    assert sentence(read(tmp_path)).startswith("no rank waits")


def calls_another(folder: Path) -> None:
    x, parts = torch.ones(4), list(torch.zeros(3, 4))
    with record(folder):
        dist.barrier()
        odd = dist.get_rank() == 2
        call = (
            dist.all_gather(parts, x, async_op=True) if odd else dist.all_reduce(x, async_op=True)
        )
        load_data(folder / "go")
        if odd:
            os.kill(os.getpid(), signal.SIGKILL)
        call.wait()


def test_ranks_that_call_different_collectives_are_told_apart(tmp_path: Path) -> None:
    text, _ = watched(
        calls_another, 3, tmp_path, lambda ranks: {len(r.calls) for r in ranks} == {2}
    )
    assert text.startswith("rank 2 is at all_gather #2, the others at all_reduce #2\n")
    assert "rank 0, 1" not in text, "all stand in one place"
    assert sentence(read(tmp_path)) == text.splitlines()[0], "that rank 2 died later does not count"
    assert read(tmp_path)[2].state == "gone"


def in_opposite_order(folder: Path) -> None:
    x, me = torch.ones(3), dist.get_rank()
    first, other, alone = (dist.new_group(ranks) for ranks in ([0, 1], [0, 1], [1]))
    with record(folder):
        work = dist.all_reduce(x, group=other if me else first, async_op=True)
        load_data(folder / "go")
        dist.all_reduce(x.clone(), group=first if me else other)
        work.wait()
        for root in (0, 1):
            dist.reduce(x, root, dist.ReduceOp.MAX, first)
        if me:
            dist.broadcast(x, 1, alone)
        minidist.all_reduce(x, minidist.ReduceOp.PRODUCT, check=False)
        minidist.broadcast(x, 1)
        config = "cpu:gloo,cuda:nccl"  # whose barriers are queued, and done on the GPU
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "get_backend_config", lambda group: config)
            dist.barrier()


def test_groups_in_opposite_order_are_a_circle_and_calls_have_root_and_operation(
    tmp_path: Path,
) -> None:
    text, _ = watched(
        in_opposite_order, 2, tmp_path, lambda ranks: {len(r.calls) for r in ranks} == {1}
    )
    said = r"ranks 0, 1 wait for each other: rank 0 in all_reduce #1 of group (\w+) for rank 1, "
    groups = re.match(said + r"rank 1 in all_reduce #1 of group (\w+) for rank 0\n", text)
    assert groups, text
    assert groups[1] != groups[2]
    calls = read(tmp_path)[1].calls
    hows = ["SUM", "SUM", "MAX, root 0", "MAX, root 1", "root 1", "PRODUCT", "root 1", ""]
    assert [call.how for call in calls] == hows
    assert [call.state for call in calls] == ["left"] * 7 + ["queued"]
    assert [call.number for call in calls] == [1, 1, 2, 3, 1, 1, 2, 3]


def pipeline(folder: Path) -> None:
    """Rank 1 sends nothing back to rank 0, whose replica, rank 2, waits for it."""
    x, me = torch.ones(3), dist.get_rank()
    replicas = dist.new_group([0, 2])
    with record(folder):
        if me == 0:
            dist.send(x, 1)
            dist.recv(x, 1, tag=7)
            dist.send(x, 1)
        if me == 1:
            dist.recv(x, 0)
            load_data(folder / "go")
            dist.send(x, 0, tag=7)
            dist.recv(x, 0)
        if me != 1:
            dist.all_reduce(x, group=replicas)


def test_in_a_pipeline_a_rank_that_waits_for_a_message_is_not_blamed(tmp_path: Path) -> None:
    def reached(ranks: list[Rank]) -> bool:
        return "load_data" in ranks[1].place and [len(r.calls) for r in ranks] == [2, 1, 1]

    text, _ = watched(pipeline, 3, tmp_path, reached)
    said = r"rank 1 has not come to message 1→0 #1 of 2 ranks for \d+\.\d s: it is in load_data at "
    assert re.match(said, text), text
    assert [call.numbered for call in read(tmp_path)[1].calls] == [
        "message 0→1 #1", "message 1→0 #1", "message 0→1 #2",
    ]  # fmt: skip
    assert sentence(read(tmp_path)).startswith("no rank waits"), "all have returned"


SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from minidist.diagnose import record

dist.init_process_group("gloo")
with record(sys.argv[1]):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    for step in range(3):
        if step == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(3)).sum().backward()
"""


def test_a_killed_rank_is_blamed_under_torchrun_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    folder = tmp_path / "flight"
    done = subprocess.run(
        [*torchrun, tmp_path / "train.py", folder], capture_output=True, text=True
    )
    assert "SIGKILL" in done.stderr
    monkeypatch.setattr(sys, "argv", ["diagnose", str(folder)])
    command.main()
    said = capsys.readouterr().out
    # It may die before the record says that it has left #7: then it is what #8 has waited for.
    came = "rank 1 (never came to all_reduce #8: it )?is gone after all_reduce #7: it was killed"
    assert re.match(came, said), said
    assert "all_reduce #8 float32 (8,) SUM    failed  -\n" in said
    monkeypatch.setattr(sys, "argv", ["diagnose", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        command.main()
    assert "no rank has recorded in" in capsys.readouterr().err


# ---- the sentence alone ----


def rank(
    number: int,
    *calls: str,
    state: str = "running",
    error: str = "",
    time: float = 0,
    times: Sequence[float] = range(9),
) -> Rank:
    """Calls are "group: name number state", such as "all: all_reduce 3 left", with what it has."""
    made = []
    for order, call in enumerate(calls):
        said, _, how = call.partition("; ")
        group, name, of_group, is_, *tensor = said.split()
        members = {"all:": [0, 1, 2], "row:": [0, 1], "col:": [1, 2], "other:": [1, 2]}[group]
        where = group.rstrip(":"), order, times[order], members
        made.append(RecordedCall(is_, int(of_group), name, " ".join(tensor), *where, how))
    stack: list[Any] = [("train.py", 31, f"place_of_{number}", None)]
    return Rank(number, 0, state, error, time, made, stack if state == "running" else [])


DONE, IN = "all: all_reduce 3 left", "all: all_reduce 4 entered"
CASES = {
    "rank 1 is gone after all_reduce #3": [
        rank(0, DONE, IN, state="echoed", error="Broken", time=1),
        rank(1, DONE, state="gone"),
        rank(2, DONE, IN),
    ],
    "rank 2 raised ValueError: x, after all_reduce #3": [
        rank(0, DONE, IN, state="echoed", error="Broken", time=0),
        rank(1, DONE, IN),
        rank(2, DONE, state="raised", error="ValueError: x", time=1),
    ],
    "rank 2 never came to all_reduce #4: it has returned, after all_reduce #3": [
        rank(0, DONE, IN), rank(1, DONE, IN), rank(2, DONE, state="returned"),
    ],
    "ranks 0, 1 have not come to all_reduce #4: rank 0 is in place_of_0 at train.py:31": [
        rank(0, DONE), rank(1, DONE), rank(2, DONE, IN),
    ],
    "rank 2 never came to all_reduce #4: it has recorded nothing": [
        rank(0, DONE, IN), rank(1, DONE, IN),
    ],
    "at all_reduce #3, rank 2 is with float32 (3,), the others with float32 (4,)": [
        rank(0, DONE + " float32 (4,)"), rank(1, DONE + " float32 (4,)"),
        rank(2, DONE + " float32 (3,)"),
    ],
    "rank 2 is at reduce #4, rank 1 is at barrier #4, rank 0 at all_reduce #4": [
        rank(0, IN), rank(1, "all: barrier 4 entered"), rank(2, "all: reduce 4 entered"),
    ],
    # Rank 2 waits for rank 0, which waits for rank 1 in their own group.
    "rank 1 has not come to broadcast #1 of 2 ranks: it is in place_of_1": [
        rank(0, DONE, "row: broadcast 1 entered"), rank(1, DONE), rank(2, DONE, IN),
    ],
    "at broadcast #1, rank 2 is with root 2, the others with root 0": [
        rank(0, "all: broadcast 1 left; root 0"), rank(1, "all: broadcast 1 left; root 0"),
        rank(2, "all: broadcast 1 entered; root 2"),
    ],
    "at all_reduce #3, rank 0 is with MAX, the others with SUM": [
        rank(0, DONE + "; MAX"), rank(1, DONE + "; SUM"), rank(2, DONE + "; SUM"),
    ],
    # What a rank passed is not known if it was refused before that was looked at.
    "rank 2 raised ValueError: y, after all_reduce #3": [
        rank(0, DONE + " (3,); SUM"), rank(1, DONE + " (3,); SUM"),
        rank(2, DONE, state="raised", error="ValueError: y"),
    ],
    "ranks 0, 1 wait for each other: rank 0 in all_reduce #4 of group all for rank 1, "
    "rank 1 in all_reduce #1 of group row for rank 0": [
        rank(0, DONE, IN), rank(1, DONE, "row: all_reduce 1 entered"), rank(2, DONE, IN),
    ],
    # A rank outside the circle waits for one in it.
    "ranks 1, 2 wait for each other: rank 1 in reduce #1 of group col for rank 2, "
    "rank 2 in barrier #1 of group other for rank 1": [
        rank(0, DONE, IN), rank(1, DONE, "col: reduce 1 entered"),
        rank(2, DONE, "other: barrier 1 entered"),
    ],
    # Rank 0 has gone on in one group; rank 2 alone waits for nobody.
    "rank 2 has not come to all_reduce #4 of 3 ranks: it is in place_of_2": [
        rank(0, DONE, IN), rank(1, DONE, IN, "row: barrier 1 entered"), rank(2, DONE),
    ],
    "all ranks have come to all_reduce #4, and it is not done": [
        rank(r, DONE, IN) for r in range(3)
    ],
    "all ranks have come to reduce #5, and it is not done": [  # by a GPU
        rank(r, DONE, "all: reduce 5 queued") for r in range(3)
    ],
    # Rank 1 has made so many calls since that the line of this one has been used again.
    "all ranks have come to all_reduce #4, and": [
        rank(0, DONE, IN), rank(1, "all: all_reduce 68 left"), rank(2, DONE, IN),
    ],
    "all ranks are gone": [rank(0, DONE, state="gone"), rank(1, DONE, state="gone")],
    "no rank waits: each has left": [rank(0, DONE), rank(1, DONE), rank(2)],
    # The launcher killed those that had not returned.
    "rank 2 never came to all_reduce #4: it has returned": [
        rank(0, DONE, IN, state="gone"), rank(1, DONE, IN, state="gone"),
        rank(2, DONE, state="returned"),
    ],
    "rank 1 raised MemoryError, after all_reduce #3": [
        rank(0, DONE, IN, state="gone"), rank(1, DONE, state="raised", error="MemoryError"),
    ],
    "rank 1 is gone after all_reduce #4": [
        rank(0, DONE, "all: all_reduce 4 failed", state="echoed"), rank(1, DONE, IN, state="gone"),
        rank(2, DONE, "all: all_reduce 4 failed", state="echoed"),
    ],
    # A rank had no more batches, or swallowed an error, and left; the others' messages failed.
    "rank 2 never came to all_reduce #4: it has returned, after": [
        rank(0, DONE, "all: all_reduce 4 failed", state="echoed", error="Broken"),
        rank(1, DONE, IN, state="ended"), rank(2, DONE, state="returned"),
    ],
    # Gloo ends the process that receives what another dtype sent; and a crash of its own.
    "at all_reduce #4, rank 1 is with float64 (4,), the others with float32 (4,)": [
        rank(0, IN + " float32 (4,)", state="crashed", error="Aborted"),
        rank(1, IN + " float64 (4,)", state="echoed"), rank(2, IN + " float32 (4,)"),
    ],
    "rank 1 crashed (Segmentation fault) after all_reduce #3": [
        rank(0, DONE, IN), rank(1, DONE, state="crashed", error="Segmentation fault"),
        rank(2, DONE, "all: all_reduce 4 failed", state="echoed"),
    ],
    # The launcher killed all of them when they had hung for too long.
    "rank 1 never came to all_reduce #4: it is gone": [
        rank(0, DONE, IN, state="gone"), rank(1, DONE, state="gone"),
        rank(2, DONE, IN, state="gone"),
    ],
}  # fmt: skip


def test_one_sentence_says_what_is_wrong() -> None:
    found = {said: sentence(ranks) for said, ranks in CASES.items()}
    alike({said: found[said][: len(said)] for said in CASES}, {said: said for said in CASES})
    a, b = (f"all: all_to_all_single 1 left float32 ({n},)" for n in (3, 4))
    sizes = sentence([rank(0, a), rank(1, b), rank(2, a)])
    assert sizes.startswith("no rank waits"), "sizes may differ in an all-to-all"


CAME = [rank(r, DONE, IN) for r in range(3)]
ON = [rank(r, DONE, "all: all_reduce 4 left") for r in range(3)]
LATE = [rank(0, DONE, IN), rank(1, DONE), rank(2, DONE, IN)]
GONE = [rank(0, DONE, IN), rank(1, DONE, IN), rank(2, DONE, state="returned")]
NEVER = "rank 1 has not come to all_reduce #4 for "
IN_CIRCLE = CASES[next(said for said in CASES if said.startswith("ranks 0, 1 wait"))]


def test_a_rank_is_blamed_only_if_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = rank(0, IN, *[DONE] * 3, times=range(0, 8, 2))  # its calls take 2 s
    for looks, said, seconds in (
        ([LATE, LATE, CAME], "not yet: rank 1 went on", 0.4),
        ([LATE], NEVER, 1.0),
        ([[slow, *LATE[1:]]], NEVER, 4.0),  # twice what is usual
        ([LATE[:1], LATE[:1], LATE[:2]], "not yet: rank 1 went on", 0.4),  # it has just started
        ([LATE, [*LATE[:1], rank(1, DONE, state="raised", error="E")]], "rank 1 raised E", 0.2),
        ([CAME, CAME, ON], "not yet: ranks 0, 1, 2 went on", 0.4),
        ([CAME], "all ranks have come to all_reduce #4, and it is not done", 1.0),
        ([IN_CIRCLE, IN_CIRCLE, CAME], "not yet: rank 1", 0.4),
        ([GONE], "rank 2 never", 0),
        ([[rank(0, IN), rank(1)]], "ranks 1, 2 have not come to all_reduce #4 for 10.0 s", 1.0),
        ([[rank(0, DONE, DONE, IN, times=(0, 300, 302)), rank(1)]], "ranks 1, 2 have", 4.0),
        ([[rank(0, DONE, IN, times=(0, 300)), rank(1)]], "ranks 1, 2 have", 1.0),
        ([[rank(0, DONE, DONE, IN, times=(0, 300, 600)), rank(1)]], "ranks 1, 2 have", 20.0),
    ):
        clock, left = [0.0], iter(looks)
        monkeypatch.setattr(table, "look", lambda _, left=left, last=looks[-1]: next(left, last))
        fake = SimpleNamespace(
            time=lambda: 10.0,
            monotonic=lambda clock=clock: clock[-1],
            sleep=lambda more, clock=clock: clock.append(clock[-1] + more),
        )
        monkeypatch.setattr(table, "time", fake)
        assert report("folder").startswith(said)
        assert clock[-1] == pytest.approx(seconds, abs=0.21), said


def test_a_rank_blamed_for_its_call_is_not_blamed_for_being_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [
        rank(0, IN + " float32 (4,)", state="crashed", error="Aborted"),
        rank(1, IN + " float64 (4,)", state="gone"),
        rank(2, IN + " float32 (4,)", state="echoed"),
    ]
    monkeypatch.setattr(table, "look", lambda _: ranks)
    said = report("folder")
    assert said.startswith("at all_reduce #4, rank 1 is with float64 (4,)")
    assert "rank 1 waited in all_reduce #4 until it was killed, perhaps by the launcher" in said


# ---- the files ----


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 0 of 1, without a group."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def test_a_rank_that_nobody_knows_and_a_folder_without_a_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="which rank is this"), record(tmp_path):
        pass
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.chdir(tmp_path)
    for folder in ("", None):
        said = f"rank 3: diagnose.record: folder: expected a path, got {folder!r}"
        with pytest.raises(ValueError, match=said), record(folder):  # type: ignore[arg-type]
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("alone")
def test_a_damaged_record_is_a_sentence(tmp_path: Path) -> None:
    kinds = (b"", b"garbage", bytes(LINE), b"\xff" * LINE, b"running {}", b"running 3")
    said = r"diagnose: .*0.calls, or what lies beside it, is dam"
    for damaged in kinds:
        with record(tmp_path):  # one can follow another
            pass
        (tmp_path / "0.calls").write_bytes(damaged)
        all_refused([(partial(report, tmp_path), said)], ValueError)


@pytest.fixture
def enter(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Recorder, Callable[..., Any]]]:
    """A recorder in this process, and what enters a call of a group of so many ranks."""
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: list(range(group.ranks)))
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo")
    with record(tmp_path):
        recorder = Recorder(tmp_path / "0.calls", 0, 1)

        def call(name: str = "barrier", *tensors: Any, ranks: int = 2) -> Any:
            group: Any = SimpleNamespace(group_name=f"of {ranks}", ranks=ranks)
            return recorder.enter(name, group, tensors, "", [0] * (name == "tagged"))

        yield recorder, call


def test_a_half_written_line_and_a_missing_stack_are_left_out(
    tmp_path: Path, enter: tuple[Recorder, Callable[..., Any]]
) -> None:
    recorder, call = enter
    leaves = [call() for _ in range(KEPT + 1)]
    leaves[0]("left")  # its line is that of the last call by now
    recorder._state(3, "")  # call 2 is being written, and of call 3 half is
    recorder._memory[4 * LINE + 100 : 5 * LINE] = bytes(LINE - 100)
    (tmp_path / "0.stack").unlink()
    [found] = read(tmp_path, patience=0)
    assert [call.number for call in found.calls] == [*range(4, KEPT + 2)]
    assert [call.state for call in found.calls] == ["entered"] * (KEPT - 2)
    assert found.now == f"is alive after barrier #{KEPT + 1}, its stack unknown"


def test_a_call_that_nccl_answers_with_no_work_is_queued(tmp_path: Path) -> None:
    def on_rank() -> None:
        with pytest.MonkeyPatch.context() as patch, record(tmp_path):
            patch.setattr(dist.Work, "unbox", lambda work: None)
            dist.all_reduce(torch.ones(1))

    minidist.launch(on_rank, 2)
    assert [[call.state for call in rank.calls] for rank in read(tmp_path)] == [["queued"]] * 2


def test_many_members_a_long_error_and_a_gpu_s_tensor_are_noted(
    tmp_path: Path, enter: tuple[Recorder, Callable[..., Any]]
) -> None:
    recorder, call = enter
    on_gpu = SimpleNamespace(dtype=torch.int8, shape=(2,), is_cuda=True)
    for state in ("left", "failed"):
        call("all_reduce", on_gpu)(state)
    call(ranks=3000)("left")
    recorder.note("raised", "word " * 3000)
    [found] = read(tmp_path)
    assert [call.state for call in found.calls] == ["queued", "failed", "left"]
    assert found.calls[0].tensor == "int8 (2,)"
    assert [len(call.members) for call in found.calls] == [2, 2, 3000]
    assert (found.state, len(found.error)) == ("raised", 100)


def test_a_new_tag_for_each_message_does_not_fill_the_disk(
    tmp_path: Path, enter: tuple[Recorder, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "TAGS", 3)
    for ranks in range(1, 9):
        enter[1]("tagged", ranks=ranks)("left")
    enter[1](ranks=9)("left")
    assert [call.name for call in read(tmp_path)[0].calls] == ["tagged"] * 4 + ["barrier"]


def test_a_rank_of_another_host_is_named_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "node-7")
        Recorder(tmp_path / "0.calls", 0, 1)
    [found] = read(tmp_path)
    assert found.now == "is on host node-7, before any collective: diagnose it there for its stack"


def ended_by_torchrun(folder: Path) -> None:
    with record(folder):
        os.kill(os.getpid(), signal.SIGTERM)
        load_data(folder / "never")


def asked_too_late(folder: Path) -> bool:
    with record(folder):
        pass
    os.kill(os.getpid(), STACK_SIGNAL)
    return True


def test_a_rank_that_is_asked_for_its_stack_after_its_record_lives_on(tmp_path: Path) -> None:
    assert minidist.launch(asked_too_late, 1, tmp_path) == [True]


def test_a_rank_killed_while_it_notes_its_end_has_its_first_line(tmp_path: Path) -> None:
    recorder, written = Recorder(tmp_path / "0.calls", 0, 1), list[slice]()

    class Memory:
        def __setitem__(self, place: slice, content: bytes) -> None:
            assert len(content) == LINE
            written.append(place)

    recorder._memory = Memory()  # type: ignore[assignment]
    recorder.note("raised", "ValueError: 3")
    assert written == [slice(None, LINE)], "at once"


def test_what_an_earlier_run_and_a_launcher_s_end_leave_is_understood(tmp_path: Path) -> None:
    Recorder(tmp_path / "3.calls", 3, 4).note("raised")
    with pytest.raises(minidist.RankError, match="was killed by SIGTERM"):
        minidist.launch(ended_by_torchrun, 1, tmp_path)
    [found] = read(tmp_path)
    assert found.state == "ended"
    assert found.now.startswith("was in ended_by_torchrun at test_diagnose.py:")


def crashes(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with record(folder):
        minidist.barrier()
        if dist.get_rank():
            load_data(folder / "never")
        wait_until(lambda: "load_data" in read(folder)[1].place, 60)
        os.abort()


def test_a_crash_is_no_kill_and_a_stack_of_the_past_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(minidist.RankError, match="rank 0 was killed by SIGABRT"):
        minidist.launch(crashes, 2, tmp_path)
    text = report(tmp_path)
    assert text.startswith("rank 0 crashed (Aborted) in crashes at test_diagnose.py:"), text
    assert "rank 1 is gone after minidist.barrier #1: it was killed" in text
    assert "load_data" not in text, "where rank 1 stood before it was killed"
    assert "\nrank 0:\n" in text


@pytest.mark.usefixtures("alone")
def test_a_rank_s_own_error_is_told_from_an_echo(tmp_path: Path) -> None:
    for error, state in ((KeyError("x"), "raised"), (CommunicationError("x"), "echoed")):
        with pytest.raises(type(error)), record(tmp_path):
            raise error
        assert [(each.rank, each.state) for each in read(tmp_path)] == [(0, state)]
