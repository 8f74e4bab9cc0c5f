"""What the records of ranks that hang, disagree or die say about them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import minidist
from minidist.diagnose import __main__ as command
from minidist.diagnose import record, report
from minidist.diagnose.recorder import KEPT
from minidist.diagnose.verdict import Call, Rank, read, sentence
from tests.support.processes import wait_until


def watched(
    fn: Callable[..., Any], ranks: int, folder: Path, until: Callable[[list[Rank]], bool]
) -> tuple[str, list[Rank]]:
    """The report on ranks that run `fn(folder)`, in the state that they come to by themselves."""
    found: list[Any] = []

    def watch() -> None:
        reached = lambda: len(list(folder.glob("*.calls"))) == ranks and until(read(folder))  # noqa: E731
        if wait_until(reached, 60):
            found.extend([report(folder), read(folder)])
        (folder / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with suppress(minidist.RankError):  # Gloo may end a process for what its peers have sent
        minidist.launch(fn, ranks, folder)
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


def test_a_rank_that_never_comes_is_named_with_the_place_where_it_is(tmp_path: Path) -> None:
    def reached(ranks: list[Rank]) -> bool:
        late = [name for _, _, name, _ in ranks[1].stack]
        return "load_data" in late and all(r.calls[-1].state == "entered" for r in ranks[::2])

    text, (first, late, _) = watched(comes_late, 3, tmp_path, reached)
    number = first.calls[-1].number
    line = load_data.__code__.co_firstlineno + 2
    where = f"it is in load_data at test_diagnose.py:{line}"
    assert text.startswith(f"rank 1 never came to all_reduce #{number}: {where}\n")
    table, stacks = text.split("\n\n")[1:]
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


def barrier_of_a_gpu(folder: Path) -> None:
    config = "cpu:gloo,cuda:nccl"  # whose barriers are queued, and done on the GPU
    with pytest.MonkeyPatch.context() as patch, record(folder):
        patch.setattr(dist, "get_backend_config", lambda group: config)
        dist.barrier()
        dist.all_reduce(torch.ones(1))


def test_nccl_s_barrier_is_queued_not_left(tmp_path: Path) -> None:
    minidist.launch(barrier_of_a_gpu, 1, tmp_path)
    assert [call.state for call in read(tmp_path)[0].calls] == ["queued", "left"]


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
    assert said.startswith("rank 1 is gone after all_reduce #7: it was killed"), said
    assert "all_reduce #8 float32 (8,)  failed  -\n" in said
    monkeypatch.setattr(sys, "argv", ["diagnose", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        command.main()
    assert "no rank has recorded anything in" in capsys.readouterr().err


# ---- the sentence alone ----


def rank(
    number: int, *calls: str, state: str = "running", error: str = "", time: float = 0
) -> Rank:
    """Calls are "group: name number state", such as "all: all_reduce 3 left", with its tensor."""
    made = []
    for order, call in enumerate(calls):
        group, name, of_group, how, *tensor = call.split()
        members = {"all:": [0, 1, 2], "row:": [0, 1]}[group]
        made.append(Call(how, int(of_group), name, " ".join(tensor), group, order, order, members))
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
    "ranks 0, 1 never came to all_reduce #4: rank 0 is in place_of_0 at train.py:31": [
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
    "rank 1 never came to broadcast #1: it is in place_of_1": [
        rank(0, DONE, "row: broadcast 1 entered"), rank(1, DONE), rank(2, DONE, IN),
    ],
    "all ranks have come to all_reduce #4, and it is not done": [
        rank(r, DONE, IN) for r in range(3)
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
    # The launcher killed all of them when they had hung for too long.
    "rank 1 never came to all_reduce #4: it is gone": [
        rank(0, DONE, IN, state="gone"), rank(1, DONE, state="gone"),
        rank(2, DONE, IN, state="gone"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("said", CASES)
def test_one_sentence_says_what_is_wrong(said: str) -> None:
    assert sentence(CASES[said]).startswith(said)


def test_sizes_may_differ_in_an_all_to_all() -> None:
    a, b = (f"all: all_to_all_single 1 left float32 ({n},)" for n in (3, 4))
    assert sentence([rank(0, a), rank(1, b), rank(2, a)]).startswith("no rank waits")


def test_a_rank_that_nobody_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="which rank is this"), record(tmp_path):
        pass
