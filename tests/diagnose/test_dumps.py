"""Dumps of PyTorch's flight recorder: real ones over Gloo, and NCCL's as the format has them.

NCCL's fields are those that torch/distributed/flight_recorder/components/builder.py lists; what
coalesced calls lack is told in ProcessGroupNCCL.cpp.
"""

import os
import pickle
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

import minidist
from course.chapters.disagree import torch_record
from minidist.diagnose import __main__ as command
from minidist.diagnose import record, report
from minidist.diagnose.dumps import read_dumps
from minidist.diagnose.recorder import KEPT
from tests.support.cases import alike
from tests.support.refusals import all_refused

c10d: Any = _distributed_c10d


def fails(folder: Path, odd: int, fault: str) -> None:
    """Each rank's dump as torch writes it, and with the members of groups, as the lab has it."""
    rank = dist.get_rank()
    wrong = fault if rank == odd else ""
    dist.all_reduce(torch.ones(4))
    call: Any = partial(dist.broadcast, src=1) if wrong == "another" else dist.all_reduce
    if wrong != "late":
        call(torch.ones(3 if wrong == "shape" else 4), async_op=True)
    time.sleep(0.2)  # a call that all have made is done by then
    (folder / f"raw_{rank}").write_bytes(c10d._dump_fr_trace())
    (folder / f"{torch_record.PREFIX}{rank}").write_bytes(pickle.dumps(torch_record.dump()))
    time.sleep(0.2)  # nobody leaves before all have written


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older ones do not read Gloo's")
def test_of_a_real_dump_both_readers_say_the_same_unless_rank_0_is_odd(tmp_path: Path) -> None:
    last = r"it has last called all_reduce #1 in fails at test_dumps\.py:\d+"
    offenders = []
    for odd, fault, said, torch_says in (
        (1, "late", f"rank 1 has not come to all_reduce #2: {last}", r"missing ranks: \{1\}"),
        (1, "another", "rank 1 is at broadcast #2, the others at all_red.* #2", "Culprit rank 1"),
        (1, "shape", r"at all_reduce #2, rank 1 is with float32 \(3,\), the .*", "Culprit rank 1"),
        (0, "another", "rank 0 is at broadcast #2, the others at all_red.* #2", "Culprit rank 2"),
    ):
        (folder := tmp_path / f"{odd}{fault}").mkdir()
        minidist.launch(fails, 3, folder, odd, fault, device="cpu")
        pages = [report(sorted(folder.glob(f"{name}_*"))) for name in ("raw", "torch")]
        theirs = torch_record.torchfrtrace(folder)
        ours = all(re.fullmatch(said, page.partition("\n")[0]) for page in pages)
        if not ours or not re.search(torch_says, theirs):
            offenders += [f"{fault} of {odd}", *pages, theirs]
    assert not offenders, "\n".join(offenders)


# ---- NCCL's ----

WORLD = {"0": ("default_pg", [0, 1, 2])}


def entry(
    what: str, order: int = 0, group: tuple[str, str] = ("0", "default_pg")
) -> dict[str, Any]:
    """An entry such as "all_reduce 3 completed"; its tensor has 4 elements, or so many."""
    name, number, state, *size = what.split()
    sizes, dtypes = [[int(size[0]) if size else 4]], ["BFloat16"]
    return {
        "record_id": order, "pg_id": 0, "process_group": group, "collective_seq_id": int(number),
        "p2p_seq_id": 0, "op_id": order, "profiling_name": f"nccl:{name}",
        "time_created_ns": 10**18 + order, "input_sizes": sizes, "input_dtypes": dtypes,
        "output_sizes": sizes, "output_dtypes": dtypes, "state": state, "is_p2p": name == "send",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": state == "completed", "timeout_ms": 600_000,
        "frames": [{"name": "step", "filename": "train.py", "line": 31}],
    }  # fmt: skip


def write(
    folder: Path, ranks: dict[int, list[Any]], groups: dict[str, tuple[str, list[int]]] = WORLD
) -> Path:
    """A dump for each rank, of calls that are words, or words and their group."""
    folder.mkdir()
    for rank, calls in ranks.items():
        pairs = [call if isinstance(call, tuple) else (call, "0") for call in calls]
        dump = {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": about, "ranks": str(members)}
                for name, (about, members) in groups.items()
            },
            "pg_status": {},
            "entries": [
                entry(what, order, (name, groups[name][0]))
                for order, (what, name) in enumerate(pairs)
            ],
        }
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def test_nccl_s_dumps_are_understood(tmp_path: Path) -> None:
    done, coming = "all_reduce 1 completed", ["all_reduce 2 started", "all_reduce 3 scheduled"]
    here = "in step at train.py:31"
    halves = {"0": ("default_pg", [0, 1, 2]), "5": ("mesh_tp", [0, 1])}
    cases: dict[str, tuple[dict[int, list[Any]], Any]] = {
        f"rank 1 has not come to all_reduce #2: it has last called all_reduce #1 {here}": (
            {0: [done, *coming], 1: [done], 2: [done, *coming]}, WORLD,
        ),
        "rank 1 has not come to all_reduce #1: it made no call": (
            {0: [done.replace("completed", "started")], 1: [], 2: [done]}, WORLD,
        ),
        "rank 2 never came to all_reduce #2: it has recorded nothing": (
            {0: [done, *coming], 1: [done, *coming]}, WORLD,
        ),
        "all ranks have come to all_reduce #2, and it is not done": (
            {rank: [done, *coming] for rank in range(3)}, WORLD,
        ),
        "no rank waits: each has left every collective": ({r: [done] for r in range(3)}, WORLD),
        "at all_gather_single #1, rank 2 is with bfloat16 (8,), the others with bfloat16 (4,)": (
            {r: [f"_all_gather_base 1 started {4 + 4 * (r == 2)}"] for r in range(3)}, WORLD,
        ),
        # Calls that are coalesced have the state of the last entry, and messages are left out.
        "no rank waits: each has left": (
            {r: ["all_reduce 1 scheduled", "all_reduce 1 scheduled", "coalesced 1 completed",
                 "send 1 scheduled", "coalesced 4 started"] for r in range(3)}, WORLD,
        ),
        # Rank 2 waits for rank 0, which waits for rank 1 in their own group.
        "rank 1 has not come to all_reduce #1 of 2 ranks: it has last called all_reduce #1 ": (
            {0: [done, ("all_reduce 1 started", "5")], 1: [done], 2: [done, *coming]}, halves,
        ),
        # A ring of 2,000 entries: the first ones are gone.
        "rank 0 is at broadcast #9001, the others at all_reduce #9001": (
            {r: [*(f"all_reduce {n} completed" for n in range(8900, 9001)),
                 f"{'all_reduce' if r else 'broadcast'} 9001 started"] for r in range(3)}, WORLD,
        ),
    }  # fmt: skip
    found = {}
    for number, (said, (ranks, groups)) in enumerate(cases.items()):
        found[said] = report(write(tmp_path / str(number), ranks, groups))[: len(said)]
    alike(found, {said: said for said in cases})
    assert len(read_dumps([tmp_path / str(number)])[0].calls) == KEPT + 1
    assert "rank 2 left no record" in report(tmp_path / "2")


def test_a_dump_that_is_older_than_what_others_wait_in_blames_nobody(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", {0: ["all_reduce 1 started"], 1: [], 2: []})
    for rank, when in ((1, 10**9 - 5), (2, 10**9 + 5)):
        os.utime(folder / f"rank_{rank}", (when, when))
    assert report(folder).startswith("not yet: rank 1 was dumped before others came to all_red")


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one = {rank: ["all_gather 1 completed"] for rank in (0, 1)}
    other = {rank: ["barrier 1 started"] for rank in (2, 3)}
    folders = [
        write(tmp_path / "one", one, {"0": ("mesh_tp", [0, 1])}),
        write(tmp_path / "other", other, {"0": ("mesh_tp", [2, 3])}),
    ]
    assert report(folders).startswith("all ranks have come to barrier #1 of 2 ranks, and it is not")


class Trap:
    """Acts when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def test_what_is_no_dump_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (write(tmp_path / "good", {0: ["barrier 1 started"]}) / "rank_0").read_bytes()
    loaded = pickle.loads(good)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with record(tmp_path / "ours"):
        pass
    rows = []
    for number, (content, said) in enumerate(
        (
            (good[: len(good) // 2], "PyTorch's flight recorder: UnpicklingError: pickle data was"),
            (b"", "is no dump of PyTorch's flight recorder: EOFError"),
            (b'{"version": "2.10"}', "is no dump of PyTorch's flight recorder: Unpickling"),
            (pickle.dumps([1]), "is no dump of PyTorch's flight recorder: TypeError"),
            (pickle.dumps(Trap(tmp_path / "sprung")), r"UnpicklingError: it asks for \w+.mkdir"),
            (pickle.dumps(torch.ones(1)), "UnpicklingError: it asks for torch._utils"),
            (
                pickle.dumps(loaded | {"version": "3.0"}),
                "ValueError: its format is 3.0, this reads",
            ),
            (pickle.dumps({"version": "2.10"}), "is no dump of PyTorch's .*KeyError: 'pg_config'"),
            (pickle.dumps(loaded | {"entries": [{}]}), "is no dump .*KeyError: 'process_group'"),
        )
    ):
        (file := tmp_path / f"bad_{number}").write_bytes(content)
        rows.append((partial(report, [file]), f"^diagnose: {file} .*{said}"))
    both = [tmp_path / "good", tmp_path / "bad_0"]
    ours = tmp_path / "ours" / "0.calls"
    rows += [
        (partial(report, both), "good/rank_0 and .*|bad_0 and .* are both of rank 0: name the"),
        (partial(report, [ours, ours]), "0.calls: expected a dump, whose name ends in its rank"),
    ]
    all_refused(rows, ValueError)
    nothing = [tmp_path / "none", tmp_path / "good" / "rank_7", tmp_path / "ours"]
    (tmp_path / "ours" / "0.calls").unlink()
    said = "no rank has recorded in "
    all_refused([(partial(report, each), said) for each in nothing], FileNotFoundError)
    assert not (tmp_path / "sprung").exists()
    monkeypatch.setattr(sys, "argv", ["diagnose", str(tmp_path / "good" / "rank_0")])
    command.main()
    monkeypatch.setattr(sys, "argv", ["diagnose", str(tmp_path / "bad_0")])
    with pytest.raises(SystemExit, match="1"):
        command.main()
    out = capsys.readouterr()
    assert out.out.startswith("ranks 1, 2 never came to barrier #1: rank 1 has recorded nothing")
    assert out.err.startswith(f"diagnose: {tmp_path / 'bad_0'} is no dump")
    assert out.err.count("\n") == 1
