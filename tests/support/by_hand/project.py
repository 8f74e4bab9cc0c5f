"""Files of the project as a learner may write them, wrong in the typical ways.

They run on the ranks, so this module imports little.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, misc"
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.optim import AdamW

import minidist
from from_scratch import ring
from from_scratch.ddp import (
    BucketedDDP,
    FlatDDP,
    OverlappedDDP,
    PerParameterDDP,
    flatten_gradients,
    set_gradients,
)
from from_scratch.fsdp import FSDP, Unit
from from_scratch.zero import FlatParameters, ZeRO1, ZeRO2
from from_scratch.zero3 import Gather, ZeRO3
from tests.support.by_hand.spoiled import Done


def with_part(whole: Any, name: str, kind: type) -> Any:
    """A class of the lesson that has parts of another class than the one of this name."""

    class Changed(whole):
        def __init__(self, *args: Any, **options: Any) -> None:
            with patch(f"{whole.__module__}.{name}", kind):
                super().__init__(*args, **options)

    return Changed


# ---- ring.py: (all_reduce, reduce_scatter, all_gather) ----


def gathered(tensor: Any) -> None:
    """N - 1 messages of everything."""
    total, passing = tensor.clone(), tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        received = torch.empty_like(passing)
        ring.send_right_receive_left(passing, received)
        passing = received
        total += passing
    tensor.copy_(total)


def with_the_other(tensor: Any) -> None:
    """Right on two ranks."""
    if dist.get_world_size() > 1:
        theirs = torch.empty_like(tensor)
        ring.send_right_receive_left(tensor, theirs)
        tensor += theirs


def in_equal_chunks(tensor: Any) -> None:
    """Right where N divides the number of elements."""
    rest = tensor.numel() % dist.get_world_size()
    ring.all_reduce(tensor[: tensor.numel() - rest])


def by_torch(tensor: Any) -> None:
    dist.all_reduce(tensor)


def by_minidist(tensor: Any) -> None:
    minidist.all_reduce(tensor, algorithm="ring")


def by_functions_of_torch(tensor: Any) -> None:
    """Past the process group, which is watched."""
    tensor.copy_(functional.all_reduce(tensor, "sum", dist.group.WORLD))


def in_float32(tensor: Any) -> None:
    """Half the bytes, for half the digits."""
    rounded = tensor.float()
    ring.all_reduce(rounded)
    tensor.copy_(rounded)


def in_two_rings(tensor: Any) -> None:
    for half in tensor.view(-1).tensor_split(2):
        ring.all_reduce(half)


def one_by_one(tensor: Any) -> None:
    """Both are on their way before either is waited for: right over Gloo, a hang under NCCL."""

    def batch(ops: Any) -> Any:
        return [each.op(each.tensor, each.peer) for each in ops]

    with patch.object(dist, "batch_isend_irecv", batch):
        ring.all_reduce(tensor)


def in_turns(tensor: Any) -> None:
    """Rank 0 sends first, the others receive first: slow, and right on GPUs too."""

    def batch(ops: Any) -> Any:
        for each in ops if dist.get_rank() == 0 else reversed(ops):
            each.op(each.tensor, each.peer).wait()
        return []

    with patch.object(dist, "batch_isend_irecv", batch):
        ring.all_reduce(tensor)


def overwrites_its_input(output: Any, input: Any) -> None:
    chunks = list(input.view(-1).chunk(dist.get_world_size()))
    ring.reduce_scatter_chunks(chunks)
    output.view(-1).copy_(chunks[dist.get_rank()])


def by_an_all_reduce(output: Any, input: Any) -> None:
    whole = input.clone()
    ring.all_reduce(whole)
    output.view(-1).copy_(whole.view(-1).chunk(dist.get_world_size())[dist.get_rank()])


# ---- ddp.py ----


class Sums(FlatDDP):
    def synchronize(self) -> None:
        flat = flatten_gradients(self.parameters)
        self.comm.all_reduce(flat)
        set_gradients(self.parameters, flat)


class NotBroadcast(FlatDDP):
    def __init__(self, module, comm):
        self.module, self.comm = module, comm
        self.parameters = [each for each in module.parameters() if each.requires_grad]


class HalvesOnAnyRanks(FlatDDP):
    def synchronize(self) -> None:
        flat = flatten_gradients(self.parameters) / 2
        self.comm.all_reduce(flat)
        set_gradients(self.parameters, flat)


class ByTorch(FlatDDP):
    def synchronize(self) -> None:
        flat = flatten_gradients(self.parameters).div_(self.comm.ranks)
        dist.all_reduce(flat)
        set_gradients(self.parameters, flat)


class OneCallEach(PerParameterDDP):
    """For the flat milestone: right, in a call for each parameter."""


class Minidists(FlatDDP):
    def __init__(self, module, comm):
        self.module = minidist.DistributedDataParallel(module, comm=comm, bucket_cap_mb=1000)

    def synchronize(self) -> None:
        pass


class KeepsCopies(PerParameterDDP):
    def synchronize(self) -> None:
        super().synchronize()
        self.kept = [flatten_gradients(self.parameters) for _ in range(2)]


class KeepsArrays(PerParameterDDP):
    """Copies that torch's allocator does not see."""

    def synchronize(self) -> None:
        super().synchronize()
        self.kept = [each.grad.numpy().copy() for each in self.parameters]


class GathersEach(PerParameterDDP):
    """As many bytes as an all-reduce on two ranks, and more on three."""

    def synchronize(self) -> None:
        for parameter in self.parameters:
            own = parameter.grad.flatten()
            every = own.new_empty(self.comm.ranks * len(own))
            self.comm.all_gather(every, own)
            parameter.grad.copy_(every.view(self.comm.ranks, -1).mean(0).view_as(parameter))


class Divided(FlatDDP):
    """Right: in a second flat tensor."""

    def synchronize(self) -> None:
        flat = torch.cat([each.grad.flatten() for each in self.parameters]) / self.comm.ranks
        self.comm.all_reduce(flat)
        set_gradients(self.parameters, flat)


class WaitsAtOnce(BucketedDDP):
    def launch_next(self) -> None:
        super().launch_next()
        self.in_flight[-1][1].wait()  # type: ignore[union-attr]


class NeverEarly(OverlappedDDP):
    def gradient_ready(self, _: Any) -> None:
        pass


class LazyAtTheEnd(OverlappedDDP):
    """The last three of eight buckets wait for `synchronize`."""

    def gradient_ready(self, parameter: Any) -> None:
        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.in_flight) < min(5, len(self.buckets)):
            if self.missing[len(self.in_flight)]:
                break
            self.launch_next()


class AsTheyFill(OverlappedDDP):
    """Launches the bucket that is full, not the next one in order."""

    def gradient_ready(self, parameter: Any) -> None:
        number = self.bucket_of[parameter]
        self.missing[number] -= 1
        if not self.missing[number]:
            self.launch(number)

    def launch(self, number: int) -> None:
        flat = flatten_gradients(self.buckets[number]).div_(self.comm.ranks)
        self.in_flight.append((number, flat, self.comm.all_reduce(flat, async_op=True)))  # type: ignore

    def synchronize(self) -> None:
        for number, flat, work in self.in_flight:  # type: ignore
            work.wait()
            set_gradients(self.buckets[number], flat)
        self.in_flight.clear()
        self.missing = [len(bucket) for bucket in self.buckets]


class NotAfresh(OverlappedDDP):
    """Right in the first step."""

    def synchronize(self) -> None:
        BucketedDDP.synchronize(self)


class OnRank0Only(FlatDDP):
    def synchronize(self) -> None:
        if self.comm.rank == 0:
            super().synchronize()


class ForgetsBuffers(FlatDDP):
    def __init__(self, module, comm):
        with patch.object(module, "buffers", list):
            super().__init__(module, comm)


class FloatsOnly(FlatDDP):
    """It forgets the buffer that counts."""

    def __init__(self, module, comm):
        floats = [each for each in module.buffers() if each.is_floating_point()]
        with patch.object(module, "buffers", lambda: floats):
            super().__init__(module, comm)


class TrainsFrozen(PerParameterDDP):
    def synchronize(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad /= self.comm.ranks
            self.comm.all_reduce(parameter.grad)


class UpToTwoRanks(FlatDDP):
    def synchronize(self) -> None:
        if self.comm.ranks < 3:
            super().synchronize()


# ---- zero.py ----


def taken_gradients(flats: FlatParameters) -> Any:
    """Its parameters' gradients in one new tensor, padded; the parameters' own are dropped."""
    flat = torch.zeros(len(flats.shard) * flats.comm.ranks, dtype=flats.shard.dtype)
    for parameter, view in zip(flats.parameters, flats.views(flat), strict=True):
        view.copy_(parameter.grad)
        parameter.grad = None
    flats.missing = len(flats.parameters)
    return flat


class ByAllReduce(FlatParameters):
    def reduce_gradients(self, before: Any = None) -> Any:
        flat = taken_gradients(self).div_(self.comm.ranks)
        self.comm.all_reduce(flat)
        self.shard.grad = flat.chunk(self.comm.ranks)[self.comm.rank]
        return Done()


AllReduces = with_part(ZeRO1, "FlatParameters", ByAllReduce)


class IgnoresItsClass(ZeRO1):
    def __init__(self, params, optimizer_class, comm, bucket_cap_mb=25, **defaults):
        super().__init__(params, AdamW, comm, bucket_cap_mb, **defaults)


class InOneGo(FlatParameters):
    """Right: each reduce-scatter is waited for where it is called."""

    def reduce_gradients(self, before: Any = None) -> Any:
        flat = taken_gradients(self).div_(self.comm.ranks)
        self.shard.grad = torch.empty_like(self.shard)
        self.comm.reduce_scatter(self.shard.grad, flat)
        return Done()


Blocking = with_part(ZeRO1, "FlatParameters", InOneGo)


class BySlices(ZeRO3):
    """Right: each weight is a slice of the gathered ones."""

    def weights(self) -> Any:
        full, start, named = Gather.apply(self.shard, self.comm), 0, {}
        for name, shape in zip(self.names, self.flat.shapes, strict=True):
            named[name] = full[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return named


class SumsOfShards(ZeRO1):
    def synchronize(self) -> None:
        super().synchronize()
        for flat in self.flats:
            flat.shard.grad *= flat.comm.ranks  # type: ignore[operator]


class NeverGathers(ZeRO1):
    def step(self) -> None:
        self.synchronize()
        self.inner.step()


class KeepsWholeState(ZeRO1):
    """Right, and as much state as without ZeRO."""

    def step(self) -> None:
        super().step()
        self.kept = [torch.empty_like(flat.buffer) for flat in self.flats for _ in range(2)]


class Stage1(ZeRO1):
    """For ZeRO-2: gradients stay whole until the step."""

    def __init__(self, *args: Any, bucket_cap_mb: float = 25, **options: Any) -> None:
        super().__init__(*args, bucket_cap_mb, **options)


class Waits(ZeRO2):
    """For ZeRO-2: reduces in backward, and stands still for it."""

    def gradient_ready(self, flat: Any, parameter: Any) -> None:
        super().gradient_ready(flat, parameter)
        if self.last_reduce:
            self.last_reduce.wait()
            self.last_reduce = None


class MinidistsZero(ZeRO1):
    def __init__(self, params, optimizer_class, comm, bucket_cap_mb=25, **options):
        more: Any = {"stage": 2, "comm": comm, "bucket_cap_mb": bucket_cap_mb}
        self.inner = minidist.ZeroOptimizer(params, optimizer_class, **options, **more)

    def step(self) -> None:
        self.inner.step()


# ---- fsdp.py ----


with_units = partial(with_part, FSDP, "Unit")


class GathersWholeGradients(Unit):
    def reduce_gradients(self, before: Any = None) -> Any:
        flat = taken_gradients(self)
        every = flat.new_empty(self.comm.ranks * len(flat))
        self.comm.all_gather(every, flat)
        mean = every.view(self.comm.ranks, -1).mean(0)
        self.shard.grad = mean.chunk(self.comm.ranks)[self.comm.rank].clone()
        return Done()


class StaysWhole(Unit):
    """Gathers once in a step, for forward, and keeps the weights until backward is over."""

    def pre_forward(self, *_: Any) -> None:
        self.unshard()

    def post_forward(self, _: Any, args: Any, output: Any) -> None:
        if output.requires_grad:
            output.register_hook(partial(self.pre_backward, []))


class FreesNothing(Unit):
    """Keeps a second copy of the weights when it frees them."""

    def reshard(self) -> None:
        if self.buffer.untyped_storage().size():
            self.kept = self.buffer.clone()
        super().reshard()


class LocalGradients(Unit):
    def reduce_gradients(self, before: Any = None) -> Any:
        flat = taken_gradients(self)
        self.shard.grad = flat.chunk(self.comm.ranks)[self.comm.rank].clone()
        return Done()


class Remembers(Unit):
    """Gathers ahead the unit that has followed this one the first time."""

    def pre_forward(self, *_: Any) -> None:
        self.unshard()
        self.model.ahead(self, self.model.forward_order)  # type: ignore[attr-defined]

    def pre_backward(self, before: Any, _: Any) -> None:
        self.unshard()
        self.model.ahead(self, self.model.backward_order)  # type: ignore[attr-defined]


class OldWeights(with_units(Remembers)):  # type: ignore[misc]
    """Keeps what it has gathered ahead until somebody uses it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.forward_order, self.backward_order = [], []

    def __call__(self, *args: Any) -> Any:
        return self.module(*args)

    def synchronize(self) -> None:
        self.last_reduce.wait()

    def ahead(self, unit: Any, order: Any) -> None:
        if unit not in order:
            order.append(unit)
        self.start_next(order[order.index(unit) + 1 :])


class NextBeforeOwn(Unit):
    """The next unit's gather is under way when this one's is called."""

    def pre_forward(self, *_: Any) -> None:
        self.model.begun.append(self)
        self.model.start_next(self.model.expected[len(self.model.begun) :])
        self.unshard()

    def pre_backward(self, before: Any, _: Any) -> None:
        self.model.start_next(before)
        self.unshard()


class AsksNothing(FSDP):
    """Gathers ahead a unit that may be there."""

    def start_next(self, units: Any) -> None:
        for unit in units[: self.prefetch]:
            if unit.gathering:
                unit.unshard()
            unit.buffer.untyped_storage().resize_(unit.buffer.nbytes)
            unit.gathering = self.comm.all_gather(unit.buffer, unit.shard.detach(), async_op=True)


class OnlyForward(FSDP):
    """Prefetches in forward alone."""

    def start_next(self, units: Any) -> None:
        if len(self.ended) < len(self.units):
            super().start_next(units)


class NoPrefetch(FSDP):
    def __init__(self, module: Any, blocks: Any, comm: Any, prefetch: bool = True) -> None:
        super().__init__(module, blocks, comm, prefetch=False)


class MinidistsFSDP(FSDP):
    def __init__(self, module: Any, blocks: Any, comm: Any, prefetch: bool = True) -> None:
        self.module = minidist.fully_shard(module, comm=comm)


class OneUnit(FSDP):
    """The whole model is one unit."""

    def __init__(self, module: Any, blocks: Any, comm: Any, prefetch: bool = True) -> None:
        super().__init__(module, [], comm, prefetch)
