"""fully_shard: the same training as in one process, and what it sends and holds meanwhile."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import Counted, Ours, fully_shard, launch, timeline
from minidist.parallel.fsdp.fully_shard import FSDPModule, units
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.sharding.layouts import FlatLayout, RowLayout
from tests.support.fsdp_models import (
    LAYOUTS,
    alike,
    descend,
    far,
    gpt,
    gradients,
    grads_of,
    mine,
    score,
    shard_blocks,
    tokens,
    wholes,
)

F64 = torch.float64


# ---- layouts, in one process ----


@pytest.mark.parametrize("kind", [RowLayout, FlatLayout])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_layouts_give_every_rank_its_part_and_all_together_the_whole(kind: Any, ranks: int) -> None:
    shapes = [torch.Size(s) for s in [(3, 2), (), (7,), (0, 4), (1, 5), (4, 2, 2)]]
    tensors = [torch.randn(shape) for shape in shapes]
    table = torch.full((kind(shapes, ranks, 0).padded,), 7.0)
    kind(shapes, ranks, 0).pack(tensors, table)
    for rank in range(ranks):
        layout = kind(shapes, ranks, rank)
        local = table.view(ranks, -1)[rank]
        for index, view in enumerate(layout.pieces(local)):
            assert torch.equal(view, layout.piece(index, tensors[index])), (rank, index)
        assert len(local) == layout.shard_numel == layout.padded // ranks
        for whole, tensor in zip(layout.tensors(table), tensors, strict=True):
            assert torch.equal(whole, tensor)
        flat = table if layout.in_place else torch.empty(layout.flat_numel)
        layout.arrange(table, flat)
        assert all(map(torch.equal, layout.parameters(flat), tensors))
    assert table.sum() == pytest.approx(sum(t.sum() for t in tensors).item(), abs=1e-4)


def test_rows_are_cut_as_torch_chunks_them() -> None:
    whole = torch.arange(14.0).view(7, 2)
    parts = [RowLayout([whole.shape], 3, rank).piece(0, whole) for rank in range(3)]
    assert all(map(torch.equal, parts, whole.chunk(3)))


# ---- training ----


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_training_is_that_of_one_process_and_traffic_as_counted(ranks: int) -> None:
    """Bytes sent in units of (N-1)/N × padded bytes: 3, or 2 if nothing is freed after forward."""

    def run() -> list[str]:
        wrong = []
        for layout in LAYOUTS:
            for reshard, prefetch in ((True, True), (False, True), (None, False)):
                comm = Counted(Ours(algorithm="ring"))
                options = {"layout": layout, "prefetch": prefetch, "comm": comm}

                def wrap(net: nn.Module, options: Any = options, reshard: Any = reshard) -> Any:
                    return shard_blocks(net, reshard_after_forward=reshard, **options)

                where = f"{layout}, {reshard}, {prefetch}: "
                if said := alike(gpt, wrap, score, tokens(0, 12)):
                    wrong.append(where + said)
                net = wrap(gpt())
                padded = [sum(8 * b.layout.padded for b in unit.groups) for unit in units(net)]
                comm.clear()
                score(net, mine(tokens(1, 12))).backward()
                times = {True: 3 * sum(padded), False: 2 * sum(padded)}
                times[None] = 3 * sum(padded) - padded[0]
                if comm.bytes_sent * ranks != (ranks - 1) * times[reshard]:
                    wrong.append(f"{where}{comm.bytes_sent} bytes of {times[reshard]}")
        return wrong

    assert launch(run, ranks) == [[]] * ranks


def test_it_trains_as_torchs_own() -> None:
    def run() -> str:
        from torch.distributed.fsdp import fully_shard as torchs

        ours, theirs = shard_blocks(gpt()), gpt()
        for block in theirs.blocks:
            torchs(block)
        torchs(theirs)
        models = (ours, theirs)
        optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in models]
        for step in range(3):
            losses = []
            for net, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = score(net, mine(tokens(step, 6)))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            if abs(losses[0] - losses[1]) > 1e-12:
                return f"step {step}: {losses}"
        local = {n: p.to_local() for n, p in theirs.named_parameters()}  # cut as ours
        return far({n: p.detach() for n, p in ours.named_parameters()}, local)

    assert launch(run, 3) == [""] * 3


class Pieces(nn.Module):
    """Blocks that are put together in unusual ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.how = how
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.LayerNorm(5)) for _ in range(3)
        )
        self.tail = nn.Linear(5, 2)
        self.never = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.ones(()))
        self.double()
        if how == "frozen":
            self.blocks[0].requires_grad_(False)
            self.blocks[1][0].weight.requires_grad_(False)
        if how == "dtypes":
            self.blocks[1].float()
        if how == "tied":
            self.blocks[1][0].bias = self.blocks[1][2].bias

    def forward(self, x: torch.Tensor) -> Any:
        for index, block in enumerate(self.blocks):
            if self.how == "checkpoint round a unit":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.how == "checkpoint in a unit":
                x = checkpoint(lambda x, block=block: block(x), x, use_reentrant=False)
            elif self.how == "dtypes":
                x = block(x.to(block[0].weight.dtype)).double()
            elif self.how == "twice":
                x = block(x) + block(-x)
            elif self.how == "in place":
                x = block(x).view(-1, 5)
                x += index
            else:
                x = block(x)
        return self.tail(x) * self.scale


HOWS = (
    "plain",
    "checkpoint round a unit",
    "checkpoint in a unit",
    "twice",
    "in place",
    "frozen",
    "dtypes",
    "tied",
)


def squares(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean()


def test_units_in_unusual_ways() -> None:
    """3 ranks: 5 rows leave the last one with fewer, 2 with none."""

    def run() -> dict[str, str]:
        batch = torch.randn(6, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
        found = {}
        for layout in LAYOUTS:
            for how in HOWS:
                found[f"{how}, {layout}"] = alike(
                    lambda how=how: Pieces(how),
                    lambda net, layout=layout: shard_blocks(net, layout=layout),
                    squares,
                    batch,
                    tolerance=1e-6 if how == "dtypes" else 1e-10,
                )
        return {how: said for how, said in found.items() if said}

    assert launch(run, 3) == [{}] * 3


def test_a_unit_that_returns_a_view_may_be_written_into() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 6, dtype=F64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).view(-1, 3, 2).transpose(1, 2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.blocks = nn.ModuleList([Turned()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.blocks[0](x)
            y *= 2
            return y.square()

    def run() -> str:
        batch = torch.randn(4, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
        return alike(Net, shard_blocks, squares, batch)

    assert launch(run, 2) == [""] * 2


def test_accumulation_sends_gradients_once() -> None:
    def run() -> list[Any]:
        found: list[Any] = []
        for layout in LAYOUTS:
            comm = Counted(Ours())
            net, bare = shard_blocks(gpt(), layout=layout, comm=comm), gpt()
            comm.clear()
            for part in range(3):
                net.set_requires_gradient_sync(part == 2)
                score(net, mine(tokens(part, 4))).backward()
                score(bare, tokens(part, 4)).backward()
                if part < 2:
                    found.append([shard.grad is None for shard in net.parameters()])
            calls = [call.name for call in comm.calls]
            found.append((calls.count("reduce_scatter"), far(gradients(net), grads_of(bare))))
        return found

    held = [True] * 40
    for found in launch(run, 2):
        assert found == [held, held, (4, "")] * 2


def test_set_requires_gradient_sync_may_leave_out_the_units_inside() -> None:
    def run() -> list[bool]:
        net = shard_blocks(gpt())
        net.set_requires_gradient_sync(False, recurse=False)
        score(net, mine(tokens(0, 4))).backward()
        return [p.grad is None for p in (net.token.weight, net.blocks[0].qkv.weight)]

    assert launch(run, 2) == [[True, False]] * 2


# ---- when it sends, and what it holds ----


def test_the_next_unit_is_gathered_while_this_one_computes() -> None:
    """The first forward has no order to go by; those after it, and all backwards, do."""

    def run(prefetch: bool) -> list[list[str]]:
        net = shard_blocks(gpt(), prefetch=prefetch)
        events: list[str] = []
        for unit in units(net):
            begin = unit.begin_unshard

            def log(async_op: bool = True, unit: Any = unit, begin: Any = begin) -> bool:
                begun = begin(async_op)
                if begun:
                    events.append(unit.short)
                return bool(begun)

            unit.begin_unshard = log  # type: ignore[method-assign]
        for index, block in enumerate(net.blocks):
            name = f"compute {index}"
            block.norm.register_forward_hook(lambda *_, name=name: events.append(name))
            block.think.register_full_backward_hook(lambda *_, name=name: events.append(name))
        found = []
        for step in range(2):
            ids = mine(tokens(step, 4))
            loss = score(net, ids)
            found.append(list(events))
            events.clear()
            loss.backward()
            found.append(list(events))
            events.clear()
        return found

    b = [f"blocks.{index}" for index in range(3)]
    c = [f"compute {index}" for index in range(3)]
    plain = ["root", b[0], c[0], b[1], c[1], b[2], c[2]]
    back = ["root", b[2], c[2], b[1], c[1], b[0], c[0]]
    assert launch(run, 2, False) == [[plain, back] * 2] * 2
    ahead = ["root", b[0], b[1], c[0], b[2], c[1], c[2]]
    back_ahead = ["root", b[2], b[1], c[2], b[0], c[1], c[0]]
    assert launch(run, 2, True) == [[plain, back_ahead, ahead, back_ahead]] * 2


def test_a_timeline_has_every_unit() -> None:
    def run() -> list[tuple[str, str]]:
        net = shard_blocks(gpt())
        with timeline() as line:
            score(net, mine(tokens(0, 4))).backward()
        return sorted((span.lane, span.name) for span in line.spans)

    names = ["blocks.0", "blocks.1", "blocks.2", "root"]
    want = [("communication", f"reduce-scatter {name}") for name in names]
    want += [("communication", f"unshard {name}") for name in names for _ in range(2)]
    want += [("compute", "backward"), ("compute", "forward")]
    assert launch(run, 2) == [sorted(want)] * 2


def storages(tensors: Iterator[torch.Tensor]) -> int:
    """Bytes of the memory under the tensors, each once."""
    under = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(under.values())


def living() -> list[torch.Tensor]:
    """All tensors of this process that hold numbers of a model's dtype."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return [tensor for tensor in tensors if tensor.dtype == F64]


def test_a_resharded_unit_holds_its_shard_and_at_most_two_are_whole() -> None:
    """Looked at in every forward and backward of a layer, and all that lives at the end."""

    def train(net: Any) -> list[int]:
        """How many units were whole, or on the way to it, at each look."""
        inner, seen = units(net)[1:], []

        def look(*_: Any) -> None:
            seen.append(sum(unit.whole or unit._under_way is not None for unit in inner))
            for unit in inner:
                held = storages(iter(unit.parameters()))
                assert bool(held) or not unit.whole, unit.name
                assert not held or unit.whole or unit._under_way is not None, unit.name

        for block in net.blocks:
            block.norm.register_forward_hook(look)
            block.think.register_full_backward_hook(look)
        for step in range(2):
            net.zero_grad()
            score(net, mine(tokens(step, 4))).backward()
        return seen

    def run() -> list[Any]:
        found: list[Any] = []
        for layout in LAYOUTS:
            for prefetch in (True, False):
                before = {id(tensor) for tensor in living()}
                net = shard_blocks(gpt(), layout=layout, prefetch=prefetch)
                seen = train(net)
                state = sum(2 * b.local.nbytes for unit in units(net) for b in unit.groups)
                freed = [storages(iter(unit.parameters())) for unit in units(net)]
                alive = (tensor for tensor in living() if id(tensor) not in before)
                found.append([prefetch, max(seen), len(seen), freed, storages(alive) - state])
                del net
        return found

    for found in launch(run, 2):
        for prefetch, most, looks, freed, besides in found:
            assert (most, looks, freed) == (1 + prefetch, 12, [0] * 4)
            assert besides < 200, "masks and the like are small, a unit is not"


def test_a_backward_through_freed_parameters_is_an_error() -> None:
    """And no read of memory that is not there: the norm's weight is read element by element."""

    def run() -> str:
        net = fully_shard(nn.LayerNorm(4))
        inside: list[torch.Tensor] = []
        net.register_forward_pre_hook(lambda *_: None)
        net.unshard()
        x = torch.ones(2, 4, requires_grad=True)
        inside.append(nn.functional.layer_norm(x, (4,), net.weight, net.bias).sum())
        net.reshard()
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as told:
            inside[0].backward()
        net.unshard()
        inside[0].backward()
        return str(told.value)

    assert all(launch(run, 2))


# ---- the module's own methods, and what is round a step ----


def test_unshard_and_reshard_by_hand() -> None:
    def run() -> list[Any]:
        net = shard_blocks(gpt())
        bare = gpt()
        block = net.blocks[0]
        shard = block.out.weight
        handle = block.unshard(async_op=True)
        handle.wait()
        whole = block.out.weight
        found = [isinstance(shard, Shard), torch.equal(whole, bare.blocks[0].out.weight)]
        found += [isinstance(net.token.weight, Shard)]  # its own parameters alone
        block.reshard()
        block.reshard()
        found += [block.out.weight is shard, whole.untyped_storage().nbytes() == 0]
        block.unshard()
        found += [block.out.weight is whole]
        return [*found, torch.equal(net(mine(tokens(0, 4))), bare(mine(tokens(0, 4))))]

    assert launch(run, 2) == [[True] * 7] * 2


def test_evaluation_before_between_and_after_training() -> None:
    def run() -> list[str]:
        wrong = []
        for reshard in (True, False):
            net, bare = shard_blocks(gpt(), reshard_after_forward=reshard), gpt()
            for step in range(2):
                for quiet in (torch.no_grad, torch.inference_mode):
                    with quiet():  # the first forward of all is one in inference mode
                        out, want = net(mine(tokens(9, 4))), bare(mine(tokens(9, 4)))
                        wrong.append(far({"out": out}, {"out": want}))
                    if any(unit.whole for unit in units(net)):
                        wrong.append("whole after an evaluation")
                score(net, mine(tokens(step, 4)))  # no backward follows
                loss = score(net, mine(tokens(step, 4)))
                loss.backward()
                score(bare, tokens(step, 4)).backward()
                wrong.append(far(gradients(net), grads_of(bare)))
                for model in (net, bare):
                    descend(model)
                    model.zero_grad()
        return [said for said in wrong if said]

    assert launch(run, 2) == [[]] * 2


def test_after_a_forward_that_raised_one_can_go_on() -> None:
    class Fails(nn.Linear):
        armed = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.armed:
                raise KeyError("no")
            return super().forward(x)

    def run() -> list[Any]:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 3), Fails(3, 3)).double()
        for layer in net:
            fully_shard(layer)
        fully_shard(net)
        x = torch.ones(2, 3, dtype=F64)
        found: list[Any] = []
        for _ in range(2):
            Fails.armed = True
            with pytest.raises(KeyError):
                net(x)
            Fails.armed = False
            found.append([unit.whole for unit in units(net)])
            net(x).sum().backward()
            found.append([parameter.grad is not None for parameter in net.parameters()])
        return found

    assert launch(run, 2) == [[[False] * 3, [True] * 4] * 2] * 2


def test_after_a_backward_that_raised_one_must_reshard() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise KeyError("no")

    def run() -> list[Any]:
        net, bare = shard_blocks(gpt()), gpt()
        ids = mine(tokens(0, 4))
        handle = net.blocks[1].register_forward_hook(lambda *a: Bad.apply(a[2]))
        with pytest.raises(KeyError):
            score(net, ids).backward()
        handle.remove()
        with pytest.raises(RuntimeError) as told:
            score(net, ids)
        net.zero_grad()
        net.reshard()
        score(net, ids).backward()
        score(bare, tokens(0, 4)).backward()
        return [str(told.value), far(gradients(net), grads_of(bare))]

    for rank, (said, wrong) in enumerate(launch(run, 2)):
        assert said.startswith(f"rank {rank}: the outermost unit (GPT): its last backward raised")
        assert not wrong


def test_optimizers_treat_shards_as_parameters() -> None:
    """Also those that update many at once, and parts that are empty."""

    def run() -> list[str]:
        wrong = []
        for foreach in (False, True):
            net, bare = shard_blocks(gpt()), gpt()
            both = [torch.optim.AdamW(m.parameters(), foreach=foreach) for m in (net, bare)]
            score(net, mine(tokens(0, 6))).backward()
            score(bare, tokens(0, 6)).backward()
            for optimizer in both:
                optimizer.step()
            wrong.append(far(wholes(net), dict(bare.named_parameters())))
            kept = sum(t.numel() for s in both[0].state.values() for t in s.values() if t.dim())
            if kept != 2 * sum(p.numel() for p in net.parameters()):
                wrong.append(f"{kept} elements of moments")
        return [said for said in wrong if said]

    assert launch(run, 3) == [[]] * 3


def test_names_classes_and_slices() -> None:
    def run() -> list[Any]:
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        fully_shard(net[1])
        names = list(dict(net.named_parameters()))
        fully_shard(net)
        found: list[Any] = [isinstance(net, FSDPModule), isinstance(net, nn.Sequential)]
        found += [names == list(dict(net.named_parameters()))]
        found += [[unit.name for unit in units(net)] == ["", "1"], type(net).__name__]
        return [*found, type(net[:1]).__name__]

    assert launch(run, 2) == [[True] * 4 + ["FSDPSequential", "Sequential"]] * 2


def test_gradients_that_are_not_there() -> None:
    """Used on no rank: stays as it was. On one: zeros elsewhere. Zero everywhere: zeros."""

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("nowhere", "somewhere", "always", "dead"):
                self.register_parameter(name, nn.Parameter(torch.ones(4)))

        def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
            y = self.always * x - self.dead * 0.0  # its gradient is -0.0
            return y + self.somewhere if rank == 1 else y

    def run() -> list[Any]:
        found: list[Any] = []
        for layout in LAYOUTS:
            net = fully_shard(Some(), layout=layout)
            for _ in range(2):
                net(torch.ones(4), dist.get_rank()).sum().backward()
            got = gradients(net)
            found.append({name: None if g is None else g.tolist() for name, g in got.items()})
        return found

    want = {"nowhere": None, "somewhere": [1.0] * 4, "always": [2.0] * 4, "dead": [0.0] * 4}
    assert launch(run, 2) == [[want] * 2] * 2


def test_hooks_on_shards_are_called_when_their_gradients_are_there() -> None:
    """So that each can be stepped on and freed in backward."""

    def run() -> list[Any]:
        net = shard_blocks(gpt())
        called = []

        def step(shard: torch.Tensor) -> None:
            called.append(shard.grad is not None)
            shard.grad = None

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        score(net, mine(tokens(0, 4))).backward()
        return [len(called), all(called), all(p.grad is None for p in net.parameters())]

    assert launch(run, 2) == [[40, True, True]] * 2


def test_zero_grad_reaches_the_shards_also_while_the_parameters_are_whole() -> None:
    def run() -> list[Any]:
        net, bare = shard_blocks(gpt(), reshard_after_forward=False), gpt()
        score(net, mine(tokens(0, 4))).backward()
        shards = [shard for unit in units(net) for block in unit.groups for shard in block.shards]
        score(net, mine(tokens(0, 4)))  # no backward follows
        net.zero_grad(set_to_none=False)
        zeros = all(shard.grad is not None and not shard.grad.any() for shard in shards)
        net.set_requires_gradient_sync(False)
        score(net, mine(tokens(1, 4))).backward()  # kept, and dropped
        net.zero_grad()
        net.set_requires_gradient_sync(True)
        score(net, mine(tokens(2, 4))).backward()
        score(bare, tokens(2, 4)).backward()
        return [zeros, far(gradients(net), grads_of(bare))]

    assert launch(run, 2) == [[True, ""]] * 2
