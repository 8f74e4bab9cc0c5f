"""launch as a function call: what goes in, what comes back, what shows on the way."""

import ctypes
import os
import random
import resource
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, launch
from minidist.launch import pickling
from minidist.launch.launch import LONGEST, _devices
from minidist.launch.output import KEPT


def identity() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def surroundings() -> dict[str, Any]:
    import only_here  # of the folder that the test puts on sys.path

    return {
        "variable": os.environ.get("MINIDIST_TEST"),
        "check": os.environ["MINIDIST_CHECK"],
        "folder": os.getcwd(),
        "module": only_here.__file__,
        "device": str(minidist.device()),
        "threads": torch.get_num_threads(),
        "main": sys.argv[:1],
    }


def test_functions_of_every_kind_travel() -> None:
    base = 10

    def closure(x: int) -> int:
        return base + x * dist.get_rank()

    class Local:
        def method(self, x: int) -> "Local":
            self.value = closure(x)
            return self

    assert launch(closure, 2, 5) == [10, 15]
    assert type(sys.modules["torch.backends.mkldnn"]) is not types.ModuleType  # a class of its own
    assert launch(lambda: torch.backends.mkldnn.__name__, 1) == ["torch.backends.mkldnn"]
    assert launch(partial(closure, 1), 2) == [10, 11]
    assert launch(dist.get_world_size, 2) == [2, 2]
    local = launch(Local().method, 2, 2)
    assert all(type(each) is Local for each in local)
    assert [each.value for each in local] == [10, 12]


def test_ranks_see_the_launcher_s_surroundings_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(identity, 1)  # the fork server's own surroundings are older than the changes below
    (tmp_path / "only_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    own = {
        "folder": str(tmp_path),
        "module": str(tmp_path / "only_here.py"),
        "device": "cpu",
        "threads": 1,
        "main": sys.argv[:1],
    }
    monkeypatch.setenv("MINIDIST_TEST", "first")
    on = {"variable": "first", "check": "1"}  # checks are on unless switched off
    assert launch(surroundings, 2, device="cpu") == [{**own, **on}] * 2
    monkeypatch.delenv("MINIDIST_TEST")
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    off = {"variable": None, "check": "0"}
    assert launch(surroundings, 1, device="cpu") == [{**own, **off}]


def test_ranks_on_the_cpu_see_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or torch puts what it shards on GPUs, of which there may be fewer than ranks."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert launch(lambda: os.environ["CUDA_VISIBLE_DEVICES"], 2, device="cpu") == ["", ""]


def test_values_are_in_the_order_of_ranks_and_random_numbers_differ_and_repeat() -> None:
    def draw() -> tuple[int, list[float]]:
        time.sleep(0.1 * (dist.get_world_size() - dist.get_rank()))
        return dist.get_rank(), [torch.rand(1).item(), np.random.rand(), random.random()]

    first, second = launch(draw, 3), launch(draw, 3)
    assert first == second
    assert [rank for rank, _ in first] == [0, 1, 2]
    for library in zip(*(numbers for _, numbers in first), strict=True):
        assert len(set(library)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such policy")
def test_ranks_that_share_cores_do_not_preempt_each_other() -> None:
    allowed = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    if subprocess.run([sys.executable, "-c", allowed], capture_output=True).returncode:
        pytest.skip("a sandbox forbids it")
    assert launch(os.sched_getscheduler, 2, 0) == [os.SCHED_BATCH] * 2


def test_output_is_in_rank_order_and_marked_whoever_wrote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk() -> None:
        rank = dist.get_rank()
        time.sleep(0.2 * (1 - rank))  # rank 1 speaks first
        print("print", rank)
        os.write(1, b"descriptor 1\n")
        print("error stream", file=sys.stderr)
        os.write(2, b"descriptor 2\n")
        subprocess.run(["echo", "helper"], check=True)
        print("two\nlines, 日本", end="")
        os.write(1, b"\xff\n")  # no UTF-8
        ctypes.CDLL(None).puts(b"C library")  # into C's own buffer, which nobody flushes

    launch(talk, 2)
    said = "print {0}|descriptor 1|error stream|descriptor 2|helper|two|lines, 日本�|C library"
    expected = [f"[rank {r}] {line}" for r in range(2) for line in said.format(r).split("|")]
    assert capsys.readouterr().out.splitlines() == expected


def test_what_a_terminal_cannot_show_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk() -> int:
        print("日本 é")
        return dist.get_rank()

    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), encoding="ascii"))
    assert launch(talk, 2) == [0, 1]
    sys.stdout.seek(0)
    assert sys.stdout.readline() == "[rank 0] \\u65e5\\u672c \\xe9\n"


def test_what_ranks_said_is_shown_when_one_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        print("before")
        dist.barrier()
        if dist.get_rank() == 1:
            print("killed", end="")
            os.kill(os.getpid(), 9)
        dist.barrier()

    with pytest.raises(RankError):
        launch(talk, 3)
    wanted = {f"[rank {rank}] before" for rank in range(3)} | {"[rank 1] killed"}
    assert wanted <= set(capsys.readouterr().out.splitlines())


def test_of_endless_output_the_first_and_the_last_lines_are_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talks() -> None:
        for number in range(300_000):
            print(f"line {number}")

    launch(talks, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[rank 0] line 0", "[rank 0] line 1"]
    assert lines[-2:] == ["[rank 0] line 299998", "[rank 0] line 299999"]
    (gap,) = (line for line in lines if "bytes left out" in line)
    left_out = int(gap.split()[3].replace(",", ""))
    kept = sum(len(line.removeprefix("[rank 0] ")) + 1 for line in lines if line != gap)
    kept -= 1  # the end of the line that the gap cuts
    assert kept <= 3 * KEPT
    assert left_out + kept == sum(len(f"line {n}\n") for n in range(300_000)), "none is lost unsaid"


def test_a_large_result_and_a_large_argument() -> None:
    def echo(data: torch.Tensor) -> torch.Tensor:
        return data + dist.get_rank()

    data = torch.arange(50 << 20, dtype=torch.uint8)
    back = launch(echo, 2, data)
    assert torch.equal(back[0], data)
    assert torch.equal(back[1], data + 1)


def test_launches_from_two_threads_at_once_do_not_mix() -> None:
    main = sys.modules["__main__"]

    def total(x: int) -> float:
        tensor = torch.tensor([float(x)])
        minidist.all_reduce(tensor)
        return tensor.item()

    with ThreadPoolExecutor(2) as threads:
        values = list(threads.map(lambda x: launch(total, 2, x), range(4)))
    assert values == [[2.0 * x] * 2 for x in range(4)]
    assert sys.modules["__main__"] is main


def test_wrong_arguments_are_named() -> None:
    calls: list[tuple[Any, Any, Any, str]] = [
        (identity, 0, 60, r"ranks must be from 1 to \d+, got 0"),
        (identity, 10**30, 60, r"ranks must be .* got 10{30}: .*open files.*ulimit"),
        (identity, 2.0, 60, "launch: ranks must be a whole number, got 2.0"),
        (identity, True, 60, "launch: ranks must be a whole number, got True"),
        (identity, 1, "60", "timeout must be between 0 and .* got '60'"),
        ([1.0], 4, 60, r"fn must be callable, got \[1.0\]; pass the function"),
        (identity, 1, 0, "timeout must be between 0 and .* got 0"),
        (identity, 1, 1e9, "timeout must .* got 1000000000.0"),
    ]
    for fn, ranks, timeout, message in calls:
        with pytest.raises((ValueError, TypeError), match=message):
            launch(fn, ranks, timeout=timeout)


def test_more_ranks_than_open_files_are_refused() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 60, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"launch: ranks must be from 1 to \d, got 40: "):
            launch(identity, 40)
        assert len(launch(identity, 3, timeout=LONGEST)) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_under_torchrun_a_rank_takes_a_gpu_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each task, as under Slurm; or shared."""
    monkeypatch.delenv("MINIDIST_DEVICE", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    found = {}
    for gpus in (8, 1, 2, 0):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        found[gpus] = str(minidist.device())
    assert found == {8: "cuda:3", 1: "cuda:0", 2: "cuda:1", 0: "cpu"}


def test_a_gpu_s_tensors_travel_as_copies_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    to_cpu = torch.Tensor.cpu
    base = torch.arange(12.0)
    sent = {"view": base[2:5], "weight": torch.nn.Parameter(base.view(3, 4).t())}
    with monkeypatch.context() as patch:  # everything is on a GPU
        patch.setattr(torch.Tensor, "is_cuda", True, raising=False)
        patch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor) or to_cpu(tensor))
        data = pickling.dumps(sent)
    assert [tuple(each.shape) for each in moved] == [(3,), (4, 3)]
    for name, tensor in pickling.loads(data).items():
        assert type(tensor) is type(sent[name])
        assert torch.equal(tensor, sent[name])
        assert tensor.requires_grad == sent[name].requires_grad


def test_device_must_be_known_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"launch: device must be .* got 'tpu'"):
        launch(identity, 1, device="tpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="torch finds no GPU"):
        launch(identity, 1, device="cuda")


def test_gpus_are_used_if_there_are_enough_or_on_demand_shared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[int, str | None, list[str], str, bool]] = [
        (2, "cpu", ["cpu", "cpu"], "gloo", False),
        (4, None, ["cuda:0", "cuda:1"], "cpu:gloo,cuda:nccl", False),
        (1, None, ["cpu", "cpu"], "gloo", False),
        (1, "cuda", ["cuda:0", "cuda:0"], "gloo", True),
    ]
    for gpus, device, *right in cases:
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        found = _devices(device, 2)
        shared = "2 ranks share 1 GPU(s)" in capsys.readouterr().out
        assert [*found, shared] == right, (gpus, device)


def test_what_cannot_be_sent_is_named() -> None:
    def lock() -> object:
        return threading.Lock() if dist.get_rank() == 1 else None

    with pytest.raises(TypeError, match=r"launch: fn and its arguments must be picklable: .*lock"):
        launch(identity, 2, [threading.Lock()])
    said = r"^rank 1 raised TypeError: the result, a lock, cannot be sent back"
    with pytest.raises(RankError, match=said) as caught:
        launch(lock, 2)
    assert isinstance(caught.value.__cause__, TypeError)
