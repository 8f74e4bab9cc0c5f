"""The claims of the chapter on FSDP, each shown by a run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn.functional import cross_entropy

import minidist
from course.pages.recorded import recorded
from course.training import models
from from_scratch.fsdp import FSDP
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from minidist.memory import activations
from minidist.memory.predict import predict
from minidist.memory.state import held
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.fsdp.unit import ShardedState
from minidist.schedule.algorithms import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from minidist.schedule.traffic import traffic
from tests.support.training import bytes_of_flags

VOCAB, LAYERS = 12, 4
NAMES = [f"blocks.{i}" for i in range(LAYERS)]
BLOCKS = ["", *NAMES]  # units


def gpt(layers: int = LAYERS) -> models.GPT:
    torch.manual_seed(0)
    return models.GPT(VOCAB, width=16, layers=layers, heads=2, context=8).double()


def shard(model: models.GPT, **options: Any) -> models.GPT:
    for block in model.blocks:
        minidist.fully_shard(block, **options)
    minidist.fully_shard(model, **options)
    return model


def loss_of(model: Any, step: int = 0, rows: int = 1) -> torch.Tensor:
    """Of other text on each rank and in each step."""
    place = torch.Generator().manual_seed(100 * step + dist.get_rank())
    text = torch.randint(VOCAB, (rows, 9), generator=place)
    return cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


# ---- E2 ----


def whole_bytes(model: Any) -> int:
    """Of all whole parameters that take memory now, each piece of it once."""
    if isinstance(model, FSDP):
        whole = [unit.buffer for unit in model.units]
    else:
        whole = [w for unit in units(model) for group in unit.groups for w in group.unsharded]
    storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in whole}
    return sum(storages.values())


def watch(model: Any, blocks: Any, look: Callable[[Any], Any]) -> list[Any]:
    """What is seen of the model while each block computes."""
    seen: list[Any] = []

    def note(*_: object) -> None:
        seen.append(look(model))

    handles = [block.register_forward_pre_hook(note) for block in blocks]
    loss_of(model)
    for handle in handles:
        handle.remove()
    return seen


def whole_units(model: Any) -> set[str]:
    """The units that are whole and not on their way."""
    return {unit.name for unit in units(model) if unit.sharded is ShardedState.UNSHARDED}


@pytest.mark.claim("D6", "E2", "E9")
def test_forward_gathers_unit_by_unit_and_the_root_alone_gathers_all() -> None:
    """Units by name in minidist's FSDP; bytes, without prefetch and with it, in the other one."""

    def run() -> Any:
        names, sizes = [], []
        for blocks in (True, False):
            model = gpt()
            inside = shard(model).blocks if blocks else minidist.fully_shard(model).blocks
            names.append(watch(model, inside, whole_units))
        for blocks, prefetch in ((True, False), (True, True), (False, True)):
            net = gpt()
            scratch = FSDP(net, net.blocks if blocks else [], Ours(), prefetch)
            loss_of(scratch).backward()  # from then on the order of units is known
            scratch.synchronize()
            sizes.append(watch(scratch, net.blocks, whole_bytes))
        return names, sizes

    everything = gpt()
    nbytes = sum(parameter.nbytes for parameter in everything.parameters())
    block = sum(parameter.nbytes for parameter in everything.blocks[0].parameters())
    last = nbytes - LAYERS * block + block  # the root, and a block
    for (by_block, alone), (plain, ahead, everyone) in minidist.launch(run, 2, device="cpu"):
        assert by_block == [{"root", name} for name in NAMES]
        assert alone == [{"root"}] * LAYERS
        assert plain == [last] * LAYERS
        assert ahead == [last + block] * (LAYERS - 1) + [last], "the next one is on its way"
        assert everyone == [nbytes] * LAYERS


# ---- E3 ----


def gradients_inside() -> Any:
    """Of a block: what autograd makes, what is left, and the average of what all ranks made."""
    model, made = shard(gpt()), {}
    block = model.blocks[1]

    def look(*_: object) -> None:
        for name, parameter in block.named_parameters():
            parameter.register_hook(lambda g, name=name: made.update({name: g.clone()}))

    block.register_forward_pre_hook(look)
    loss_of(model).backward()
    left = {name: p.grad.clone() for name, p in block.named_parameters()}
    unfreed = whole_bytes(model)
    still = [
        w for unit in units(model) for b in unit.groups for w in b.unsharded if w.grad is not None
    ]
    full = minidist.full_gradients(model)
    return made, left, {n: full[f"blocks.1.{n}"] for n in made}, unfreed, len(still)


@pytest.mark.claim("E3")
def test_backward_makes_whole_gradients_and_leaves_shards_of_their_average() -> None:
    by_rank = minidist.launch(gradients_inside, 3)
    shapes = {name: p.shape for name, p in gpt().blocks[1].named_parameters()}
    for made, _, _, unfreed, still in by_rank:
        assert {name: each.shape for name, each in made.items()} == shapes
        assert unfreed == still == 0, "weights and gradients are let go"
    for name in shapes:
        every = [made[name] for made, *_ in by_rank]
        assert not torch.allclose(every[0], every[1]), "each rank has other samples"
        for _, _, average, *_ in by_rank:
            assert torch.allclose(average[name], sum(every) / 3, atol=1e-12)
        kept = sum(left[name].numel() for _, left, *_ in by_rank)
        assert kept == shapes[name].numel(), "together they have one"


# ---- E4, E6 ----


def counted(shape: tuple[int, int], **options: Any) -> Any:
    """Bytes that this rank sends in a step: in its column of a mesh, and in its row."""
    groups = init_device_mesh("cpu", shape).get_all_groups()
    comms = tuple(Counted(Ours(group, algorithm="ring", check=False)) for group in groups)
    model = shard(gpt(), comm=comms, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    calls: list[int] = []
    for step in range(2):
        for comm in comms:
            comm.clear()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        calls = [len(comm.calls) for comm in comms]
        optimizer.step()
    in_step = [len(comm.calls) - before for comm, before in zip(comms, calls, strict=True)]
    parameters = len(list(model.parameters()))
    sent = [comm.bytes_sent for comm in comms]
    for index, comm in enumerate(comms):
        sent[index] -= bytes_of_flags(comm, parameters)
    padded = [sum(b.layout.padded for b in unit.groups) for unit in units(model)]
    kept = sum(block.local.nbytes for unit in units(model) for block in unit.groups)
    with torch.no_grad():
        return in_step, sent, padded, kept, loss_of(model).item()


@pytest.mark.claim("E4", "E6")
def test_the_step_calls_nobody_and_each_strategy_sends_what_it_must() -> None:
    cases = {"full": (1, 4), "kept": (1, 4), "none": (4, 1), "hybrid": (2, 2)}

    def run() -> Any:
        return {
            name: counted(mesh, reshard_after_forward=name != "kept")
            for name, mesh in cases.items()
        }

    (first, *_) = by_rank = minidist.launch(run, 4, device="cpu")
    whole = sum(parameter.nbytes for parameter in gpt().parameters())
    for name, (rows, columns) in cases.items():
        in_step, (column, row), padded, kept, loss = first[name]
        assert in_step == [0, 0], "the optimizer is local"
        size = 8 * sum(padded)
        passes = 2 if name == "kept" else 3
        assert row == passes * (columns - 1) * size // columns
        assert column == 2 * (rows - 1) * (size // columns) // rows
        assert kept == size // columns
        assert kept == pytest.approx(whole / columns, rel=0.05), "but for padding"
        assert loss == pytest.approx(first["none"][-1], abs=1e-10), "the same training"
    assert len({each["full"][-1] for each in by_rank}) == 4


@pytest.mark.claim("E6")
@pytest.mark.parametrize(("nodes", "local"), [(2, 4), (2, 8), (4, 8)])
def test_hybrid_sends_less_between_nodes_and_keeps_more(nodes: int, local: int) -> None:
    everyone, numel = nodes * local, nodes * local * 120

    def leaves(schedule: Any, size: int, per_node: int) -> float:
        return traffic(schedule, size, itemsize=1, local=per_node).between_nodes / numel / nodes

    gather, scatter = ring_all_gather(everyone), ring_reduce_scatter(everyone)
    full = 2 * leaves(gather, numel, local) + leaves(scatter, numel, local)
    column = leaves(ring_all_reduce(nodes), numel // local, 1)
    by_places = leaves(ring_all_gather(nodes), numel // local, 1)  # a ring for each place in a node
    assert full == pytest.approx(3 * (everyone - 1) / everyone)
    assert local * column == pytest.approx(2 * (nodes - 1) / nodes)
    assert local * column < full
    assert local * by_places == pytest.approx((nodes - 1) / nodes)


# ---- E7 ----


@pytest.mark.claim("E7")
def test_recorded_fsdp_has_room_for_more_where_memory_is_short() -> None:
    rows = recorded("fsdp")["rows"]
    limits: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["what"] == "limit":
            assert row["peak"] <= row["limit"]
            limits.setdefault(row["limit"], {})[row["way"]] = row
    assert len(limits) == 3
    roomy, short, state = (limits[limit] for limit in sorted(limits, reverse=True))
    assert roomy["fsdp"]["batch"] >= roomy["ddp"]["batch"] > short["ddp"]["batch"] > 0
    assert short["fsdp"]["batch"] > short["ddp"]["batch"]
    assert state["ddp"]["batch"] == 0 < state["fsdp"]["batch"]
    for ways in (roomy, short):
        assert all(row["tokens_per_second"] > 0 for row in ways.values())


# ---- E8 ----


def parts_of_memory() -> Any:
    """What a rank holds of the state, the most of whole weights, and activations of a forward."""
    model = shard(gpt())
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model).backward()
    optimizer.step()
    sizes = watch(model, model.blocks, whole_bytes)
    wholes = [w for unit in units(model) for block in unit.groups for w in block.unsharded]
    beside = [*wholes, *model.parameters()]
    kept = [activations.saved(lambda r=r: loss_of(model, 0, r), beside) for r in (2, 4)]
    return held(model, optimizer).total, max(sizes), kept


@pytest.mark.claim("E8")
def test_the_state_shrinks_with_ranks_and_units_and_activations_do_not() -> None:
    found = {ranks: minidist.launch(parts_of_memory, ranks)[0] for ranks in (1, 2, 4)}
    for ranks, (state, whole, kept) in found.items():
        assert state == predict(gpt(), ranks, "fsdp", units=NAMES).state.total
        assert state == found[1][0] // ranks, "sizes that the ranks divide"
        assert (whole, kept) == found[2][1:] or ranks == 1
        assert 1.9 * kept[0] < kept[1] < 2.1 * kept[0], "activations go with the batch"


@pytest.mark.claim("E8")
def test_recorded_each_stage_fits_more_layers_and_checkpoints_help_fsdp_most() -> None:
    rows = {(row["strategy"], row["checkpointed"]): row for row in recorded("limit")["rows"]}
    stages = "ddp", "zero1", "zero2", "fsdp"
    plain, more = ([rows[stage, each]["layers"] for stage in stages] for each in (False, True))
    gains = [with_ - without for with_, without in zip(more, plain, strict=True)]
    assert plain == sorted(plain)
    assert gains == sorted(gains)
    assert plain[-1] > 2 * plain[0]
    for row in rows.values():
        assert 0.8 * row["predicted_layers"] <= row["layers"] <= row["predicted_layers"]


# ---- E9, of PyTorch's own ----


def stepped(build: str) -> bool:
    """Whether a step changes the root's weight if the optimizer is built then."""
    mesh = init_device_mesh("cpu", (2,))
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch_fully_shard(net[0], mesh=mesh)
    torch_fully_shard(net, mesh=mesh)
    if build == "after sharding":
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = net(torch.ones(2, 4)).sum()
    if build == "after a forward":
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss.backward()
    before = net[1].weight.full_tensor().clone()
    optimizer.step()
    return not torch.equal(before, net[1].weight.full_tensor())


@pytest.mark.claim("E9")
def test_an_optimizer_that_is_built_too_early_or_too_late_steps_nothing() -> None:
    when = "before sharding", "after sharding", "after a forward"
    for found in minidist.launch(lambda: [stepped(each) for each in when], 2, device="cpu"):
        assert found == [False, True, False]


def tied() -> torch.nn.Sequential:
    """An embedding and an output layer with one weight."""
    net = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    return net


class Direct(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self[0].weight)  # without calling the layer


@pytest.mark.claim("E9")
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="it drops the tie unsaid"
)
def test_tied_weights_share_a_unit_and_a_unit_is_gathered_by_its_own_forward() -> None:
    def run() -> None:
        sharded = partial(torch_fully_shard, mesh=init_device_mesh("cpu", (2,)))
        two, one, direct = tied(), tied(), Direct(torch.nn.Linear(4, 4))
        ids = torch.tensor([[0, 1]])
        for module in (*two, two):
            sharded(module)
        with pytest.raises(ValueError, match=r"use fully_shard\(\[module_a, module_b\]\)"):
            two(ids)
        sharded([*one])
        sharded(one)
        one(ids).sum().backward()
        assert one[0].weight is one[1].weight
        sharded(direct[0])
        sharded(direct)
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
            direct(torch.ones(2, 4))

    minidist.launch(run, 2, device="cpu")
