"""fully_shard on two dimensions: shards inside a row of ranks, the same on every row."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from minidist import Counted, Ours, full_gradients, fully_shard, launch, timeline
from tests.fsdp.test_checks import says
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.training import far, grads_of, mine


def rows_of_two() -> tuple[Counted, Counted]:
    """(replicate, shard) of 2 × 2 ranks; all ranks make all groups."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    replicate, shard = columns[rank % 2], rows[rank // 2]
    return Counted(Ours(replicate, algorithm="ring")), Counted(Ours(shard, algorithm="ring"))


def test_a_mesh_of_one_and_of_two_dimensions_as_torchs_own() -> None:
    def run() -> list[str]:
        from torch.distributed.fsdp import fully_shard as torchs

        wrong = []
        for shape in ((4,), (2, 2), (4, 1)):
            names = ("replicate", "shard")[-len(shape) :]
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            ours, theirs = (shard_blocks(gpt(), wrap, mesh=mesh) for wrap in (fully_shard, torchs))
            for model in (ours, theirs):
                score(model, mine(tokens(0, 8))).backward()
            want = {name: p.grad.to_local() for name, p in theirs.named_parameters()}
            wrong.append(far(grads_of(ours), want))
        return wrong

    assert launch(run, 4) == [[""] * 3] * 4


def test_accumulation_in_rows_and_a_mistake_of_one_rank() -> None:
    """Gradients go between the rows once, and are alike there in every bit; so does the mistake."""

    def run() -> list[Any]:
        comms = rows_of_two()
        layer: Any = torch.nn.Linear(2, 2) if dist.get_rank() != 1 else None
        said = says(lambda: fully_shard(layer, comm=comms))
        net, bare = shard_blocks(gpt(), comm=comms), gpt()
        comms[0].clear()
        with timeline() as line:
            for part in range(2):
                net.set_requires_gradient_sync(part == 1)
                score(net, mine(tokens(part, 8))).backward()
                score(bare, tokens(part, 8)).backward()
        calls = [call.name for call in comms[0].calls]
        assert calls.count("all_reduce") == 4 + 1, "of each unit's gradients, and of flags"
        bits = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
        replica = bits.clone()
        dist.broadcast(replica, dist.get_rank() % 2, group=comms[0].group)
        names = sorted((span.lane, span.name) for span in line.spans)
        return [said, far(full_gradients(net), grads_of(bare)), torch.equal(bits, replica), names]

    travels = ["reduce-scatter", "all-reduce", *["unshard"] * 4]
    units = ("blocks.0", "blocks.1", "blocks.2", "root")
    names = [("communication", f"{each} {unit}") for each in travels for unit in units]
    names = sorted(names + [("compute", each) for each in ("forward", "backward")] * 2)
    found = launch(run, 4)
    assert [trained for _, *trained in found] == [["", True, names]] * 4
    mistake = "module: expected a torch.nn.Module, got a NoneType"
    assert found[0][0] == f"MismatchError: fully_shard: on rank 1: {mistake}"
    assert found[1][0] == f"TypeError: rank 1: fully_shard: {mistake}"
    assert all(mistake in said for said, *_ in found)


def test_meshes_and_comms_that_do_not_fit() -> None:
    def run() -> list[str]:
        world = init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("a", "b", "c"))
        one = DeviceMesh("cpu", [0])
        wrong: list[dict[str, Any]] = [
            {"mesh": world},
            {"mesh": world["a"], "comm": Ours()},
            {"comm": "gloo"},
            {"comm": (Ours(), 3)},
            {"comm": (Ours(), Ours())},
            *[{"mesh": one}] * dist.get_rank(),
        ]
        layer = torch.nn.Linear(2, 2)
        said = [says(lambda options=options: fully_shard(layer, **options)) for options in wrong]
        fully_shard(torch.nn.Linear(2, 2, device="meta"), mesh=world["a"])
        return said

    for rank, said in enumerate(launch(run, 2)):
        want = [
            "ValueError: {}mesh: expected one dimension (shard) or two (replicate, shard), got 3: "
            "(2, 1, 1)",
            "ValueError: {}mesh and comm: expected one of them, got both; a comm has its own group",
            "TypeError: {}comm: expected a Comm, such as Ours(), got str",
            "TypeError: {}comm: expected a Comm, such as Ours(), got int",
            "ValueError: {}comm: expected a pair (replicate, shard) of groups that share this rank "
            "alone, as the columns and rows of a mesh do, got [{0, 1}, {0, 1}]",
            *["ValueError: {}mesh: this rank is not in it, but [0]"] * rank,
        ]
        assert said == [each.replace("{}", f"rank {rank}: fully_shard: ") for each in want]
