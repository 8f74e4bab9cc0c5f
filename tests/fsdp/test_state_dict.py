"""The state dict of a sharded module: this rank's shards, for the same rank of as many."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minidist import full_state_dict, fully_shard, launch
from tests.fsdp.test_checks import says
from tests.full_model.test_state_dict import difference
from tests.support.models import Net, loss, units, wrappings

SHARDED = ["units", "kept whole after forward", "only the root", "mixed", "hybrid"]


def evaluated(name: str, seed: int) -> Any:
    """Wrapped in one way; of one kind the parameters are whole now."""
    model = wrappings(dist.get_world_size())[name](Net(seed))
    with torch.no_grad():
        loss(model, 0)
    return model


def read(folder: Path, name: str, rank: int) -> Any:
    return torch.load(folder / f"{name} {rank}.pt", weights_only=True)


def save_and_load(folder: Path) -> dict[str, str]:
    """What is said of states that are not this rank's; the others go back to where they were."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name in SHARDED:
        torch.save(evaluated(name, 0).state_dict(), folder / f"{name} {rank}.pt")
        state, model = read(folder, name, rank), evaluated(name, 8)
        assert {type(value) for value in state.values()} <= {torch.Tensor, int}
        told = model.load_state_dict(state)
        assert [*told.missing_keys, *told.unexpected_keys] == []
        assert difference(full_state_dict(model), Net(0).state_dict()) == "", name
    dist.barrier()

    model = units(Net(8))
    states = {
        "another rank": read(folder, "units", (rank + 1) % ranks),
        "a full one": Net(0).state_dict(),
        "fewer ranks": read(folder, "hybrid", rank),  # which is of two
    }
    said = {what: says(partial(model.load_state_dict, state)) for what, state in states.items()}
    assert difference(full_state_dict(model), Net(8).state_dict()) == ""
    net = Net(0)
    fully_shard(net.blocks[1])
    said["a part"] = says(lambda: net.load_state_dict(Net(1).state_dict()))[:66]
    return said


def test_shards_go_back_to_where_they_were_and_nowhere_else(tmp_path: Path) -> None:
    full = "a full state, on any number of ranks, goes by minidist.load_full_state_dict"
    for rank, said in enumerate(launch(save_and_load, 4, tmp_path)):
        where = f"RuntimeError: rank {rank}: load_state_dict: the root unit: "
        mine = f"{where}expected the shards of rank {rank} of 4, got"
        assert said == {
            "another rank": f"{mine} those of rank {(rank + 1) % 4} of 4; {full}",
            "a full one": f"{mine} those of nobody; {full}",
            "fewer ranks": f"{mine} those of rank {rank % 2} of 2; {full}",
            "a part": f"RuntimeError: rank {rank}: load_state_dict: unit blocks.1: expected the",
        }
