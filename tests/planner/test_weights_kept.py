"""FSDP with weights kept (`reshard_after_forward=False`): traffic and memory of PyTorch's and ours.

Of P parameters on N ranks, with bf16 weights in forward and backward and a reduction in fp32, a
rank sends (2 + 4) P (N - 1) / N bytes per step. It holds fp32 shards, and until backward all
weights in bf16; backward frees them unit by unit.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import minidist
from minidist.memory.activations import saved
from minidist.memory.meter import Meter
from minidist.memory.predict import predict
from minidist.memory.state import AUTOCAST
from minidist.train.gpt import GPT
from tests.support.training import bytes_of_flags, far, mine

BF16, F32 = torch.bfloat16, torch.float32
VOCAB, TIME, LAYERS = 64, 32, 6
LIBRARIES = ["torch", "ours"]


def gpt(width: int = 64, vocab: int = VOCAB, layers: int = LAYERS) -> GPT:
    torch.manual_seed(0)
    return GPT(vocab, width, layers, heads=4, context=TIME)


def score(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def shard(
    net: GPT, library: str, reshard: bool | None, *, mixed: bool = True, comm: Any = None
) -> Any:
    """Each block a unit, and the root with the rest; an untied head and the embedding units too."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.fsdp import fully_shard as torchs

    policy = MixedPrecisionPolicy(BF16, F32) if mixed else MixedPrecisionPolicy()
    options: dict[str, Any] = {"reshard_after_forward": reshard, "mp_policy": policy}
    wrap: Callable[..., Any] = torchs if library == "torch" else minidist.fully_shard
    if library == "ours":
        options["comm"] = comm
    if net.head.weight is not net.token.weight:
        wrap(net.token, **options)
        wrap([net.norm, net.head], **options)
    for block in net.blocks:
        wrap(block, **options)
    return wrap(net, **options)


# ---- bytes on the wire ----


class Calls(TorchDispatchMode):
    """What PyTorch calls: collectives, with the bytes of the full tensor, and operations."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation.name()
        if name.startswith("c10d::"):
            tensors = args[0] if isinstance(args[0], list) else args[:2]
            self.made.append((name[len("c10d::") :], max(each.nbytes for each in tensors)))
        else:
            self.made.append((name, 0))
        return operation(*args, **(kwargs or {}))

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends if the algorithms are those that send the least, as rings."""
        factors = {"_allgather_base_": 1, "_reduce_scatter_base_": 1, "allreduce_": 2}
        found = [factors[name] * size for name, size in self.made if "::" not in name]
        return sum(found) * (ranks - 1) / ranks


def sent(library: str, strategy: str, width: int, vocab: int) -> float:
    """Bytes that this rank sends in a step, without the flags of what is used."""
    net, ids = gpt(width, vocab, 3), torch.randint(vocab, (2, TIME))
    parameters = len(list(net.parameters()))
    comm = minidist.Counted(minidist.Ours(algorithm="ring"))
    if strategy == "ddp":
        ddp = nn.parallel.DistributedDataParallel if library == "torch" else None
        model = ddp(net) if ddp else minidist.DistributedDataParallel(net, comm=comm)
    else:
        model = shard(net, library, strategy == "fsdp", comm=comm)
    for _ in range(3):  # PyTorch's DDP makes its buckets anew in the second step
        calls = Calls()
        comm.clear()
        with calls:
            score(model, ids).backward()
    if library == "torch":
        return calls.sent(dist.get_world_size())
    return comm.bytes_sent - (0 if strategy == "ddp" else bytes_of_flags(comm, parameters))


def padded(shape: torch.Size, ranks: int) -> int:
    """Elements of a parameter whose rows are made up to a multiple of the ranks."""
    return math.ceil(shape[0] / ranks) * ranks * math.prod(shape[1:])


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_sends_6_bytes_per_parameter_where_ddp_and_fsdp_send_8(ranks: int) -> None:
    """Rows of 12 and 64 elements: of the first sizes some are no multiple of the ranks."""
    strategies = ["kept", "fsdp", "ddp"]

    def run() -> dict[tuple[str, int], list[float]]:
        sizes = {12: 17, 64: VOCAB}
        return {
            (library, width): [sent(library, each, width, vocab) for each in strategies]
            for library in LIBRARIES
            for width, vocab in sizes.items()
        }

    def bytes_per_rank(each: int, numel: int) -> float:
        return each * numel * (ranks - 1) / ranks

    for found in minidist.launch(run, ranks, device="cpu"):
        for (_, width), (kept, full, ddp) in found.items():
            shapes = [p.shape for p in gpt(width, 17 if width == 12 else VOCAB, 3).parameters()]
            numel, rows = sum(map(math.prod, shapes)), sum(padded(s, ranks) for s in shapes)
            assert kept == bytes_per_rank(2 + 4, rows)
            assert full == bytes_per_rank(2 + 2 + 4, rows)
            assert ddp == pytest.approx(bytes_per_rank(4 + 4, numel), rel=1e-3)
            if width == 64:
                assert rows == numel, "without padding"
                assert kept / full == 6 / 8


# ---- memory ----


class Step(NamedTuple):
    """A step of training on one rank: elements that are whole, bytes of parts of the step."""

    life: dict[str, tuple[int, int]]  # when → elements of whole weights, of whole gradients
    made: set[torch.dtype]  # of whole gradients
    most: int  # elements of whole gradients while blocks make theirs
    begin: int  # bytes when backward begins, ...
    peak: int  # the most until it ends, ...
    end: int  # and when it has ended
    activations: int
    predicted: int  # the peak


def whole(net: nn.Module) -> tuple[int, int]:
    """Elements of weights, and of their gradients, that are now no shards."""
    there = [each for each in net.parameters() if type(each) is nn.Parameter]
    return sum(p.numel() for p in there), sum(p.numel() for p in there if p.grad is not None)


def watch(net: Any, train: Callable[[Callable[[str], None]], None]) -> Any:
    """Look at a step: before each block's forward and, weights gathered, before its backward."""
    life: dict[str, tuple[int, int]] = {}
    made: set[torch.dtype] = set()
    most, handles = [0], []

    def look(when: str) -> None:
        life[when] = whole(net)

    def gradient(each: torch.Tensor) -> None:
        made.add(each.dtype)
        most[0] = max(most[0], whole(net)[1] + each.numel())

    def before(block: nn.Module, _: object, name: str) -> None:
        look(f"forward {name}")
        handles.extend(each.register_hook(gradient) for each in block.parameters())

    def after(_: object, __: object, output: torch.Tensor, name: str) -> None:
        output.register_hook(lambda _: look(f"backward {name}"))

    for index, block in enumerate(net.blocks):
        handles.append(block.register_forward_pre_hook(partial(before, name=index)))
        handles.append(block.register_forward_hook(partial(after, name=index)))
    train(look)
    for handle in handles:
        handle.remove()
    return life, made, most[0]


def at_rest(meter: Meter) -> int:
    """Bytes that are held once Gloo's threads have let go of what they sent: the least of looks.

    They let go when they get to run, after the call that waited for them has returned.
    """
    looks = []
    for _ in range(LOOKS):
        time.sleep(PAUSE)
        looks.append(meter.now())
    return min(looks)


def step(library: str, reshard: bool, width: int, batch: int) -> Step | None:
    """On rank 0, which measures; None on others."""
    net, ids = gpt(width), torch.randint(VOCAB, (batch, TIME + 1))
    low = gpt(width).to(BF16)
    activations = saved(partial(score, low, ids), [*low.parameters(), ids])
    ranks, units = dist.get_world_size(), [f"blocks.{i}" for i in range(LAYERS)]
    predicted = predict(
        net,
        ranks,
        "fsdp",
        rank=dist.get_rank(),
        policy=AUTOCAST,
        activations=activations,
        units=units,
        reshard_after_forward=reshard,
    )
    count = sum(each.numel() for each in net.parameters())
    del low
    model = shard(net, library, reshard)
    optimizer = torch.optim.Adam(model.parameters())

    def train(look: Callable[[str], None]) -> None:
        optimizer.zero_grad()
        look("start")
        loss = score(model, ids)
        look("begin")
        loss.backward()
        look("end")
        optimizer.step()

    train(lambda _: None)
    seen = watch(model, train)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        if dist.get_rank() > 0:
            score(model, ids).backward()
            continue
        meter, always = Meter(), 12 * count // ranks  # fp32 weights and Adam's moments
        rest = at_rest(meter)
        loss = score(model, ids)
        begin, backward = at_rest(meter), meter.curve(loss.backward)
        del loss
        levels = begin, backward.peak, at_rest(meter)
        found.append([always - rest + each for each in levels])
    if not found:
        return None
    begin, peak, end = (min(each) for each in zip(*found, strict=True))
    return Step(*seen, begin, peak, end, activations, predicted.peak)


LOOKS, PAUSE = 4, 0.03  # looks at what is held, and seconds before each
SIZES = {"activations": (64, 8), "weights": (128, 1)}  # of which there are more: width and batch
CASES = [(False, "activations"), (False, "weights"), (True, "activations")]


@pytest.fixture(scope="module", params=[2, 4])
def recorded(request: Any) -> tuple[int, dict[tuple[str, bool, str], Step]]:
    def run() -> Any:
        step("ours", True, 64, 1)  # its first messages take memory for good
        return {
            (library, reshard, case): step(library, reshard, *SIZES[case])
            for library in LIBRARIES
            for reshard, case in CASES
        }

    ranks: int = request.param
    return ranks, minidist.launch(run, ranks, device="cpu", timeout=120)[0]


def sizes(width: int) -> tuple[int, int, int]:
    """Elements of the model, of a unit, and of the root."""
    net = gpt(width)
    count = sum(each.numel() for each in net.parameters())
    unit = sum(each.numel() for each in net.blocks[0].parameters())
    return count, unit, count - LAYERS * unit


def copies(library: str, case: str) -> int:
    """Bytes that Gloo alone takes: it reduces a copy, of which a slow thread holds the last one."""
    return 2 * 4 * sizes(SIZES[case][0])[1] if (library, case) == ("torch", "weights") else 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_are_whole_from_forward_until_backward_has_used_them(
    library: str, recorded: Any
) -> None:
    _, unit, root = sizes(64)
    last_norm = 2 * 64  # the root's only gradients until backward ends, where the embedding's come
    kept, full = (recorded[1][library, reshard, "activations"] for reshard in (False, True))
    for each, freed in ((kept, False), (full, True)):
        want = {"start": (0, 0), "end": (0, 0)}
        want["begin"] = (0 if freed else root + LAYERS * unit, 0)
        for i in range(LAYERS):
            weights = root + (1 if freed else i + 1) * unit
            want |= {f"forward {i}": (weights, 0), f"backward {i}": (weights, last_norm)}
        assert each.life == want
        assert each.made == {BF16}
        assert each.most == unit + last_norm, "of one unit at a time"


@pytest.mark.parametrize(("reshard", "case"), CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_backward_begins_with_a_bf16_copy_of_all_weights_and_ends_with_shards(
    library: str, reshard: bool, case: str, recorded: Any
) -> None:
    """Bytes: an N-th of fp32 weights, 4, of moments, 8, and then of gradients, 4."""
    ranks, steps = recorded
    found, (count, *_) = steps[library, reshard, case], sizes(SIZES[case][0])
    rest = pytest.approx(0, abs=8)  # the loss, in bf16, and what the meter takes to look
    copy = 0 if reshard else 2 * count
    assert found.begin - (12 * count / ranks + copy + found.activations) == rest
    assert found.end - 16 * count / ranks == rest


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_peak_is_where_the_last_or_the_last_but_one_unit_makes_its_gradients(
    library: str, case: str, recorded: Any
) -> None:
    """Beside weights: bf16 gradients of the root and of a unit, fp32 ones of a unit on their way.

    The fp32 ones come with the last but one unit, when the last one's activations are gone.
    """
    ranks, steps = recorded
    found, (count, unit, root) = steps[library, False, case], sizes(SIZES[case][0])
    state = 12 * count / ranks + 2 * count + 2 * root
    last = 2 * unit + found.activations
    one_before = 4 * unit + 4 * unit / ranks + (1 - 1 / LAYERS) * found.activations
    peak = state + max(last, one_before)
    assert (last > one_before) == (case == "activations")
    assert 0.98 * peak < found.peak < 1.02 * peak + copies(library, case)


@pytest.mark.parametrize(("case", "lowest"), [("activations", 0.98), ("weights", 0.85)])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_peak_is_as_predicted_where_activations_are_more_and_no_higher_where_weights_are(
    library: str, case: str, lowest: float, recorded: Any
) -> None:
    """The prediction adds up all weights and all gradients, which are never there together."""
    found = recorded[1][library, False, case]
    assert lowest * found.predicted < found.peak
    assert found.peak < 1.02 * found.predicted + copies(library, case)


# ---- embedding and head as units of their own ----


def untied() -> GPT:
    net = gpt(layers=2)
    net.head.weight = nn.Parameter(net.head.weight.detach().clone())
    return net


def gathers(reshard: bool | None) -> Any:
    """PyTorch's all-gathers in a step, by unit; where it first computes; and how far ours is."""
    ids = torch.randint(VOCAB, (4, TIME), generator=torch.Generator().manual_seed(0))
    named = {"root": 4 * TIME * 64, "embedding": 4 * VOCAB * 64, "head": 4 * (VOCAB + 2) * 64}
    sizes = {size: name for name, size in named.items()}
    theirs, ours = (shard(untied(), each, reshard, mixed=False) for each in LIBRARIES)
    with Calls() as calls:
        score(theirs, mine(ids)).backward()
    order = [
        sizes.get(size, "block") if name == "_allgather_base_" else "compute"
        for name, size in calls.made
        if name in ("_allgather_base_", "aten::embedding")
    ]
    score(ours, mine(ids)).backward()
    got = {name: p.grad.as_subclass(torch.Tensor) for name, p in ours.named_parameters()}
    want = {name: p.grad.to_local() for name, p in theirs.named_parameters()}
    return order, far(got, want, 1e-5)


def test_embedding_and_head_are_units_and_the_first_two_gathers_hide_behind_nothing() -> None:
    def run() -> list[Any]:
        return [gathers(reshard) for reshard in (False, True, None)]

    forward = ["root", "embedding", "compute", "block", "block", "head"]
    for kept, full, default in minidist.launch(run, 2, device="cpu"):
        assert kept == (forward, "")
        again = ["head", "block", "root", "block", "embedding"]  # one block ahead
        assert full == (forward + again, "")
        assert default == ([*forward, "head", "block", "block", "embedding"], ""), "the root's stay"
