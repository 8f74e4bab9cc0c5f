"""Models compared between ranks: what differs is found, named, and nothing else is."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import MismatchError, launch
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from minidist.comm.replicas import check_replicas, check_same_model, digest
from minidist.errors import ReplicaError

# ---- the digest, in one process ----

DTYPES = [
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def test_any_single_bit_counts_and_the_layout_does_not() -> None:
    torch.manual_seed(0)
    for dtype, shape in product(DTYPES, [(), (1,), (3, 5), (2, 3, 4, 5)]):
        top = 2 if dtype == torch.bool else 256
        count = torch.Size(shape).numel() * dtype.itemsize
        content = torch.randint(top, (count,), dtype=torch.uint8).view(dtype).view(shape)
        want = digest([content])
        for place in {0, count // 2, count - 1}:
            other = content.clone()
            other.view(-1).view(torch.uint8)[place] ^= 1
            assert digest([other]) != want, (dtype, shape, place)
        axes = tuple(reversed(range(content.dim())))
        back = content.permute(axes).contiguous().permute(axes)
        padded = content.new_empty((*shape, 2))[..., 0].copy_(content)
        learned = content.clone().requires_grad_(dtype.is_floating_point or dtype.is_complex)
        assert {digest([each]) for each in (back, padded, learned)} == {want}, (dtype, shape)


def test_what_is_equal_as_a_number_is_not_in_bits() -> None:
    quiet, loud = (torch.tensor([bits], dtype=torch.int32) for bits in (0x7FC00000, 0x7FC00001))
    numbers = [quiet.view(torch.float32), loud.view(torch.float32)]
    numbers += [torch.tensor([0.0]), torch.tensor([-0.0])]
    assert len({digest([each]) for each in numbers}) == 4
    pair, spun = torch.tensor([1.0, 2.0]), torch.randn(4, dtype=torch.complex64)
    assert digest([spun.conj()]) == digest([spun.conj().resolve_conj()]) != digest([spun])
    assert digest([pair, spun]) != digest([spun, pair])


# ---- models of all ranks ----


class Net(nn.Module):
    """Tied, frozen, strided, empty, 0-dimensional, of several dtypes, with buffers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3).bfloat16())
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.none = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)
        self.register_buffer("nothing", None)


Change = Callable[[Net], object]


def refusal(check: Callable[[], object], kind: type[Exception]) -> str:
    """What is raised, or that nothing is."""
    try:
        check()
    except kind as error:
        return str(error)
    return "alike"


def untie(net: Net) -> None:
    net.head.weight = nn.Parameter(net.embed.weight.detach().clone())


CPU, TRAINED = "torch.float32 on cpu", "torch.float32 on cpu, requires grad"
# a change on rank 1; what rank 1 has then, and what the others have
IN_SHAPE: dict[str, tuple[Change, str, str]] = {
    "nothing": (lambda net: None, "", ""),
    "numbers": (lambda net: nn.init.normal_(net.embed.weight), "", ""),
    "strides": (lambda net: net.conv.to(memory_format=torch.contiguous_format), "", ""),
    "shape": (
        lambda net: setattr(net.body, "0", nn.Linear(3, 4)),
        f"parameter 'body.0.weight', (4, 3), {TRAINED}",
        f"parameter 'body.0.weight', (4, 4), {TRAINED}",
    ),
    "dtype": (
        lambda net: net.body[2].float(),
        f"parameter 'body.2.weight', (3, 4), {TRAINED}",
        "parameter 'body.2.weight', (3, 4), torch.bfloat16 on cpu, requires grad",
    ),
    "frozen": (
        lambda net: net.conv.bias.requires_grad_(False),
        f"parameter 'conv.bias', (3,), {CPU}",
        f"parameter 'conv.bias', (3,), {TRAINED}",
    ),
    "untied": (
        untie,
        f"parameter 'head.weight', (5, 4), {TRAINED}",
        f"parameter 'head.weight', (5, 4), {TRAINED}, tied to 'embed.weight'",
    ),
    "more": (
        lambda net: net.register_buffer("late", torch.ones(1)),
        f"buffer 'late', (1,), {CPU}",
        f"buffer 'body.1.running_mean', (4,), {CPU}",
    ),
    "fewer": (
        lambda net: delattr(net.body[1], "num_batches_tracked"),
        "nothing more",
        "buffer 'body.1.num_batches_tracked', (), torch.int64 on cpu",
    ),
}


def compare_shapes() -> dict[str, str]:
    said = {}
    comm = Counted(Ours())
    for what, (change, *_) in IN_SHAPE.items():
        net = Net(dist.get_rank())
        if dist.get_rank() == 1:
            change(net)
        said[what] = refusal(lambda net=net: check_same_model(net, comm), MismatchError)
    assert comm.calls == []  # it is not the training's traffic
    return said


def test_models_of_another_shape_are_told_apart_by_the_first_difference() -> None:
    for told in launch(compare_shapes, 3):
        for what, (_, one, others) in IN_SHAPE.items():
            differ = f"the ranks' models differ: rank 1 has {one}; ranks 0, 2 have {others}"
            assert told[what] == (differ if one else "alike"), what


def flip(tensor: torch.Tensor) -> None:
    """One bit of the last byte."""
    flat = tensor.detach().reshape(-1).clone()
    flat.view(torch.uint8)[-1] ^= 1
    tensor.data.copy_(flat.view(tensor.shape))


IN_BITS: dict[str, tuple[Change, str]] = {
    "strides": (lambda net: net.conv.to(memory_format=torch.contiguous_format), ""),
    "tied": (lambda net: flip(net.head.weight), "parameter 'embed.weight'"),
    "frozen": (lambda net: flip(net.scale), "parameter 'scale'"),
    "channels_last": (lambda net: flip(net.conv.weight), "parameter 'conv.weight'"),
    "bfloat16": (lambda net: flip(net.body[2].bias), "parameter 'body.2.bias'"),
    "buffer": (lambda net: flip(net.body[1].running_var), "buffer 'body.1.running_var'"),
    "count": (
        lambda net: net.body[1].num_batches_tracked.add_(1),
        "buffer 'body.1.num_batches_tracked'",
    ),
    "mask": (lambda net: flip(net.mask), "buffer 'mask'"),
}


def compare_bits(guilty: list[int]) -> list[str]:
    """Everything that is not as it should be."""
    wrong = []
    others = [rank for rank in range(dist.get_world_size()) if rank not in guilty]
    listed = [f"rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}" for r in (guilty, others)]
    for step, (what, (change, culprit)) in enumerate(IN_BITS.items()):
        net = Net()
        model = nn.parallel.DistributedDataParallel(net) if step % 4 == 3 else net
        before = check_replicas(model)
        if dist.get_rank() in guilty:
            change(net)
        if not culprit:
            wrong += [what] if check_replicas(model, step) != before else []
            continue
        with pytest.raises(ReplicaError) as caught:
            check_replicas(model, step)
        error, said = caught.value, f"{culprit} on {listed[0]} is not as on {listed[1]}"
        found = str(error), error.ranks, error.step, f"'{error.name}'" in culprit
        if found != (f"at step {step}, {said}", tuple(guilty), step, True):
            wrong.append(f"{what}: {error.name}, {found}")
    return wrong


@pytest.mark.parametrize(("ranks", "guilty"), [(2, [1]), (3, [0]), (4, [1, 2])], ids=str)
def test_one_bit_on_some_ranks_is_found_and_named(ranks: int, guilty: list[int]) -> None:
    assert launch(compare_bits, ranks, guilty) == [[]] * ranks


def otherwise() -> dict[str, str]:
    """Other ways to differ, and ways not to."""
    rank, said = dist.get_rank(), {}
    net = Net()
    with torch.inference_mode():
        said["the sum"] = f"{check_replicas(net, step=3)}"
    assert said["the sum"] == f"{check_replicas(net)}" != f"{check_replicas(Net(1))}"
    said["steps"] = refusal(lambda: check_replicas(net, step=7 + (rank == 2)), ReplicaError)
    net.body[1].running_mean.fill_(rank)
    with torch.no_grad():
        net.embed.weight[3, 2] = float("nan")  # alike on all ranks
    said["buffers"] = refusal(lambda: check_replicas(net, buffers=False), ReplicaError)
    said["all"] = refusal(lambda: check_replicas(net), ReplicaError)
    if rank == 1:
        net.late = nn.Linear(2, 2)
    said["shape"] = refusal(lambda: check_replicas(net, 4, buffers=False), ReplicaError)
    return said


def test_steps_buffers_and_shapes() -> None:
    told = launch(otherwise, 3)
    mean = "buffer 'body.1.running_mean'"
    want = {
        "steps": "the number of the step on rank 2 is not as on ranks 0, 1",
        "buffers": "alike",
        "all": f"{mean} on ranks 1, 2 is not as on rank 0",
        "shape": "at step 4, parameter 'late.weight' on rank 1 is not as on ranks 0, 2",
    }
    (one,) = {int(each.pop("the sum")) for each in told}
    assert 0 <= one < 2**64
    assert told == [want] * 3
