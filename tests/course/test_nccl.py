"""NCCL's rules on a CPU: what would hang on GPUs fails by name; what should run there runs here."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import SGD

import minidist
from course.ask.ranks import exchange
from course.ask.switchboard import Call, Deadlock, Part, Switchboard
from course.nccl import on_nccl
from course.nccl.gpu import Unordered
from from_scratch import (
    context,
    ddp,
    expert,
    fsdp,
    local_sgd,
    pipeline,
    ring,
    tensor,
    zero,
    zero3,
)
from minidist.schedule.pipeline import gpipe, interleaved, one_f_one_b, sequence, stages_of
from tests.scripts.test_training import start

ROOT = Path(__file__).parents[2]


def ones(numel: int = 8, place: str = "cuda") -> torch.Tensor:
    return torch.ones(numel, device=place) + dist.get_rank()


def peers() -> tuple[int, int]:
    """The right and the left neighbor."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % ranks, (rank - 1) % ranks


# ---- the rules ----


def one_by_one() -> None:
    """A step of a ring as it is often written."""
    out, into = ones(), ones()
    right, left = peers()
    sending, receiving = dist.isend(out, right), dist.irecv(into, left)
    for work in (sending, receiving):
        assert work is not None
        work.wait()
    torch.add(into, 1)


def odd_ranks_receive_first() -> torch.Tensor:
    """One by one and right: neighbors agree on who sends first."""
    out, into = ones(), ones()
    right, left = peers()
    calls: list[Callable[[], Any]] = [lambda: dist.send(out, right), lambda: dist.recv(into, left)]
    for call in calls[:: -1 if dist.get_rank() % 2 else 1]:
        call()
    return into.cpu()


def on_the_cpu() -> None:
    dist.all_reduce(ones(place="cpu"), group=nccl_alone())


def nccl_alone() -> Any:
    """The default group moves CPU tensors by Gloo; this one does not."""
    group = dist.new_group()
    group.gloo = None
    return group


def strided() -> None:
    dist.all_reduce(ones(8)[::2])


def other_order() -> None:
    names = ["all_reduce", "broadcast"][:: -1 if dist.get_rank() else 1]
    for name in names:
        dist.all_reduce(ones()) if name == "all_reduce" else dist.broadcast(ones(), 0)


def from_a_thread() -> None:
    """The thread's call comes before ours on one rank, and after it on the other."""
    thread = threading.Thread(target=lambda: dist.broadcast(ones(), 0))
    for call in [thread.start, lambda: dist.all_reduce(ones())][:: -1 if dist.get_rank() else 1]:
        call()
        if call == thread.start:
            thread.join()
    torch.cuda.synchronize()


def from_a_hook() -> None:
    """Gradients arrive in another order on rank 1, and each hook sends its own."""
    a, b = (torch.ones(size, device="cuda", requires_grad=True) for size in (2, 3))
    for each in (a, b):
        each.register_post_accumulate_grad_hook(lambda each: dist.all_reduce(each.grad))
    first, second = (a, b) if dist.get_rank() else (b, a)
    first.sum().backward()
    second.sum().backward()
    torch.cuda.synchronize()


def group_of_two() -> None:
    if dist.get_rank() < 2:
        dist.new_group([0, 1])


def without_waiting() -> None:
    tensor = ones()
    dist.all_reduce(tensor, async_op=True)
    torch.add(tensor, 1)


def missing_rank() -> None:
    tensor = ones()
    if dist.get_rank():
        dist.all_reduce(tensor)
        torch.add(tensor, 1)


WAITS = "their first call, which both must make"
REFUSED: dict[str, tuple[Callable[[], Any], int, type[Exception], str]] = {
    "one by one, 2": (
        one_by_one,
        2,
        Deadlock,
        "2 ranks wait for each other: rank 0 for rank 1, in isend to rank 1; "
        "rank 1 for rank 0, in isend to rank 0",
    ),
    "one by one, 3": (
        one_by_one,
        3,
        Deadlock,
        "3 ranks wait for one another in a circle: "
        f"rank 0 for rank 1, in isend to rank 1, {WAITS}; "
        f"rank 1 for rank 2, in isend to rank 2, {WAITS}; "
        f"rank 2 for rank 0, in isend to rank 0, {WAITS}",
    ),
    "on the CPU": (on_the_cpu, 2, RuntimeError, "No backend type associated with device type cpu"),
    "strided": (strided, 2, ValueError, "Tensors must be contiguous"),
    "other order": (other_order, 2, Deadlock, "do not make the calls of their group in the same"),
    "from a thread": (from_a_thread, 2, Deadlock, "rank 0 calls broadcast"),
    "from a hook": (from_a_hook, 2, Deadlock, "rank 0 calls all_reduce(3 × float32"),
    "group of two": (group_of_two, 3, Deadlock, "rank 2, which has ended: new_group([0, 1])"),
    "missing rank": (missing_rank, 3, Deadlock, "waits for rank 0, which has ended: all_reduce("),
    "without waiting": (without_waiting, 2, Unordered, "writes: wait() for it first"),
}


def posted(*posts: tuple[int, Call]) -> list[tuple[int, str]]:
    """Whom a switchboard of four ranks answers, and with which error."""
    answers: list[tuple[int, str]] = []
    board = Switchboard(4, lambda rank, _, error, __: answers.append((rank, error)))
    for rank, call in posts:
        board.post(rank, call)
    return answers


def around(rank: int) -> Call:
    """A step of a ring of four."""
    parts = [Part((rank + 1) % 4), Part((rank - 1) % 4, sends=False)]
    return Call(0, "group", "batch_isend_irecv", parts=parts)


def test_a_rank_may_be_at_a_collective_while_others_finish_messages() -> None:
    together = Call(1, "group", "all_reduce", range(4))

    def first() -> list[tuple[int, Call]]:
        return [*((rank, around(rank)) for rank in (0, 1, 2)), (1, together)]

    assert posted(*first()) == [(1, "")], "ranks 0 and 2 wait for rank 3"
    answers = posted(*first(), (3, around(3)), *((rank, together) for rank in (0, 2, 3)))
    assert sorted(answers) == [(rank, "") for rank in range(4) for _ in range(2)]


def test_a_rank_at_a_collective_does_not_let_another_wait_for_its_messages() -> None:
    together = Call(1, "group", "all_reduce", range(4))
    (one, error), (other, _) = posted((0, together), (1, around(1)))
    assert {one, other} == {0, 1}
    assert "ranks 0 and 1 do not make the calls of their group in the same order" in error


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_hang_or_be_wrong_on_gpus_is_named(name: str) -> None:
    function, ranks, kind, text = REFUSED[name]
    with pytest.raises(minidist.RankError) as caught:
        on_nccl(function, ranks)
    assert isinstance(caught.value.__cause__, kind)
    assert text in str(caught.value)


def test_messages_one_by_one_are_right_where_neighbors_agree_who_sends_first() -> None:
    for rank, got in enumerate(on_nccl(odd_ranks_receive_first, 4)):
        assert got.tolist() == [(rank - 1) % 4 + 1] * 8


def orders_and_does_not_finish() -> list[bool]:
    """Rank 0's call cannot run before rank 1's, which comes after rank 0 has waited."""
    store, tensor = dist.distributed_c10d._get_default_store(), ones()
    if dist.get_rank():
        store.wait(["waited"])
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    seen = [work.wait(), work.get_future().done(), work.is_completed()]
    if not dist.get_rank():
        store.set("waited", "")
    return [*seen, tensor.tolist() == [3.0] * 8, work.is_completed()]


def test_a_wait_orders_and_does_not_finish_the_work() -> None:
    first, _ = on_nccl(orders_and_does_not_finish, 2)
    assert first == [True, True, False, True, True]


# ---- what runs on GPUs ----


Numbers = list[torch.Tensor]
Way = Callable[[Any, torch.device], Numbers]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = (6, 10, 10, 3)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(sizes)])


def backward(model: Any, device: torch.device, step: int = 0) -> None:
    draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
    model(torch.randn(4, 6, generator=draw).to(device)).square().mean().backward()


def trained(
    model: Any, device: torch.device, optimizer: Any = None, wrapped: Any = None
) -> Numbers:
    """The weights after three steps."""
    optimizer = optimizer or SGD(model.parameters(), 0.1)
    for step in range(3):
        backward(wrapped or model, device, step)
        getattr(wrapped, "synchronize", lambda: None)()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def torch_ddp(model: nn.Module, device: torch.device) -> Numbers:
    ids = [device.index] if device.type == "cuda" else None
    return trained(model, device, wrapped=TorchDDP(model, device_ids=ids))


def torch_fsdp2(model: Any, device: torch.device) -> Numbers:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in [*model, model]:
        torch_fully_shard(module, mesh=mesh)
    weights: Any = trained(model, device)
    return [weight.full_tensor() for weight in weights]


def our_ddp(model: nn.Module, device: torch.device) -> Numbers:
    wrapped = minidist.DistributedDataParallel(model, bucket_cap_mb=2e-4)
    return trained(model, device, wrapped=wrapped)


def our_zero2(model: nn.Module, device: torch.device) -> Numbers:
    return trained(model, device, minidist.ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1))


def our_fsdp(model: Any, device: torch.device, shape: tuple[int, ...] = ()) -> Numbers:
    names = ("replicate", "shard")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names) if shape else None
    for module in [*model, model]:
        minidist.fully_shard(module, mesh=mesh)
    trained(model, device)
    return list(minidist.full_state_dict(model).values())


def our_muon(model: Any, device: torch.device) -> Numbers:
    for module in model:
        minidist.fully_shard(module)
    trained(model, device, minidist.Muon([module.weight for module in model], lr=0.1))
    return [minidist.full_state_dict(module)["weight"] for module in model]


def our_hsdp(model: Any, device: torch.device) -> Numbers:
    return our_fsdp(model, device, (2, dist.get_world_size() // 2))


def lesson_ddp(version: Any) -> Way:
    return lambda model, device: trained(model, device, wrapped=version(model, OURS()))


def lesson_zero(version: Any) -> Way:
    return lambda model, device: trained(
        model, device, version(model.parameters(), SGD, OURS(), lr=0.1)
    )


def lesson_zero3(model: nn.Module, device: torch.device) -> Numbers:
    return trained(zero3.ZeRO3(model, OURS()), device)


def lesson_fsdp(model: Any, device: torch.device) -> Numbers:
    wrapped = fsdp.FSDP(model, model, OURS())
    trained(model, device, SGD(wrapped.shards, 0.1), wrapped)
    return wrapped.shards


def lesson_local_sgd(version: Any) -> Way:
    return lambda model, device: trained(
        model, device, version(SGD(model.parameters(), 0.1), OURS(), every=2)
    )


def lesson_ring(_: Any, device: torch.device) -> Numbers:
    tensor = torch.arange(10.0, device=device) * dist.get_rank()
    ring.all_reduce(tensor)
    return [tensor]


def lesson_pipeline(_: Any, device: torch.device) -> Numbers:
    """The gradients of this rank's stages, in three orders."""
    found = Numbers()
    ranks, draw = dist.get_world_size(), torch.Generator().manual_seed(0)
    x = torch.randn(16, 6, generator=draw).to(device)
    for order in (gpipe(ranks, 8), one_f_one_b(ranks, 8), interleaved(ranks, 8, 2)):
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8))).to(device)
        wrapped = pipeline.Pipeline(layers, stages_of(order), torch.empty(2, 6, device=device))
        wrapped.step(sequence(order), x, x, nn.functional.mse_loss)
        found += [p.grad for p in wrapped.parameters() if p.grad is not None]
    return found


def our_collectives(_: Any, device: torch.device) -> Numbers:
    """By each algorithm, at once and on its way, and the other calls."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    several = []
    for algorithm in ("ring", "naive", "tree", "recursive_doubling", "halving_doubling", "auto"):
        tensor = torch.arange(10.0, device=device) * rank
        minidist.all_reduce(tensor, algorithm=algorithm)
        work = minidist.all_reduce(tensor, async_op=True, algorithm=algorithm)
        assert work is not None
        work.wait()
        several.append(tensor)
    part, full = torch.full((3,), float(rank), device=device), torch.zeros(3 * ranks, device=device)
    minidist.all_gather_into_tensor(full, part)
    minidist.reduce_scatter_tensor(part, full)
    minidist.broadcast(part, ranks - 1)
    minidist.barrier()
    return [*several, full, part]


# ---- the labs' solutions ----


def solution(lab: str, exercise: str) -> Any:
    """The function that a lab's folded cell defines."""
    cells = nbformat.read(ROOT / "notebooks" / f"{lab}.ipynb", as_version=4).cells
    (cell,) = [each for each in cells if f"solution-{exercise}" in each.metadata.get("tags", [])]
    code = cell.source[: cell.source.rindex("grade.")]
    names: dict[str, Any] = {"torch": torch, "dist": dist, "minidist": minidist}
    exec(code, names)
    return names[code.split("def ")[1].split("(")[0]]


def lab_ring(_: Any, device: torch.device) -> Numbers:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = list((torch.arange(10.0, device=device) * rank).tensor_split(ranks))
    solution("ring", "ring")(rank, ranks, chunks, exchange)
    return chunks


def lab_ddp(model: nn.Module, device: torch.device) -> Numbers:
    solution("ddp", "by-hand")(model)
    return trained(model, device)


def lab_zero(model: nn.Module, device: torch.device) -> Numbers:
    weights = list(model.parameters())
    step = solution("zero", "by-hand")(weights, lambda params: SGD(params, 0.1))
    return trained(model, device, SimpleNamespace(step=step, zero_grad=model.zero_grad))


def lab_unit(_: Any, device: torch.device) -> Numbers:
    shard, seen = torch.ones(3, device=device) + dist.get_rank(), list[torch.Tensor]()
    unit = solution("fsdp", "unit")
    seen.append(unit(shard, lambda full: seen.append(full * 2), lambda full: full * 3, OURS()))
    return seen


def lab_split(_: Any, device: torch.device) -> Numbers:
    copy, reduce = solution("tensor", "split")(OURS())
    x = torch.arange(6.0, device=device).requires_grad_()
    y = reduce(copy(x) * (dist.get_rank() + 1))
    y.square().sum().backward()
    return [y, x.grad]


def lab_norm(_: Any, device: torch.device) -> Numbers:
    gradients = [torch.ones(3, device=device) * dist.get_rank(), None]
    return [solution("fsdp_experiments", "norm")(gradients, OURS())]


def lesson_tensor(sequence: bool) -> Way:
    def way(net: nn.Module, device: torch.device) -> Numbers:
        up, down = (torch.linspace(-1, 1, 32, device=device).view(8, 4) for _ in range(2))
        block = tensor.SplitBlock([up], torch.relu, down.T, OURS(), sequence).to(device)
        x = torch.arange(16.0, device=device).view(4, 4).requires_grad_()
        block(x).square().sum().backward()
        return [x.grad, *(each.grad for each in block.parameters())]

    return way


def lesson_context(zigzag: bool) -> Way:
    def way(_: nn.Module, device: torch.device) -> Numbers:
        full = (torch.randn(3, 16, 2, generator=torch.Generator().manual_seed(4))).to(device)
        qkv = [context.split(each, zigzag).requires_grad_() for each in full]
        found = context.attention(*qkv, zigzag=zigzag)
        found.square().sum().backward()
        return [found, *(each.grad for each in qkv)]

    return way


def lesson_experts(_: nn.Module, device: torch.device) -> Numbers:
    torch.manual_seed(4)
    router, experts = nn.Linear(4, 8), [nn.Linear(4, 4) for _ in range(8)]
    layer = expert.Experts(router, experts, OURS(), top_k=2, capacity=3).to(device)
    x = torch.randn(8, 4).to(device).requires_grad_()
    layer(x).square().sum().backward()
    return [x.grad, *(each.grad for each in layer.parameters())]


OURS = partial(minidist.Ours, algorithm="ring")
LESSON = [
    *map(lesson_ddp, (ddp.PerParameterDDP, ddp.FlatDDP, ddp.BucketedDDP, ddp.OverlappedDDP)),
    *map(lesson_zero, (zero.ZeRO1, zero.ZeRO2)),
    *map(lesson_local_sgd, (local_sgd.LocalSGD, local_sgd.DiLoCo)),
    *(lesson_zero3, lesson_fsdp, lesson_ring, lesson_pipeline),
    *map(lesson_tensor, (False, True)),
    *map(lesson_context, (False, True)),
    lesson_experts,
]
LIBRARY = [torch_ddp, torch_fsdp2, our_ddp, our_zero2]
LIBRARY += [our_fsdp, our_hsdp, our_muon, our_collectives]
LABS = [lab_ring, lab_ddp, lab_zero, lab_unit, lab_split, lab_norm]


def numbers(ways: list[Way], place: str) -> list[Numbers]:
    """What each way makes, beside Gloo's."""
    device = torch.device(place, dist.get_rank()) if place == "cuda" else torch.device(place)
    found = [way(net().to(device), device) for way in ways]
    return [[each.detach().cpu() for each in made] for made in found]


@pytest.mark.parametrize("ways", [LESSON, LIBRARY, LABS], ids=["lesson", "library", "labs"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_should_run_over_nccl_gives_what_it_gives_over_gloo(
    ways: list[Way], ranks: int
) -> None:
    over_gloo = minidist.launch(numbers, ranks, ways, "cpu", device="cpu")
    over_nccl = on_nccl(numbers, ranks, ways, "cuda")
    torch.testing.assert_close(over_nccl, over_gloo)


def test_the_scripts_run_over_nccl(tmp_path: Path) -> None:
    steps, folders = "--steps=2", [tmp_path / "ddp", tmp_path / "fsdp2"]
    (said, _) = on_nccl(start, 2, "ddp", [steps, f"--checkpoints={folders[0]}"])
    assert len(said) == 2
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2"]
    command += ["-m", "course.nccl", str(ROOT / "scripts" / "fsdp2.py")]
    options = [steps, "--batch=4", f"--checkpoints={folders[1]}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for folder in folders:
        assert [each.name for each in folder.glob("step-*")] == ["step-00000002"]
