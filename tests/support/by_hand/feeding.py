"""What learners may write for the lab on feeding the ranks. Light: every rank imports it."""

import io
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import minidist


def accumulate(
    *,
    divide: Callable[[int], float] = lambda many: many,
    quiet: Callable[[int], int] = lambda many: many - 1,
    left_out: int = 0,
    afterwards: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Callable[[Any, list[torch.Tensor], Any], None]:
    """Right as it stands: divide by the number of batches, and be quiet in all but the last."""

    def by_hand(model: Any, batches: list[torch.Tensor], loss: Any) -> None:
        many = len(batches)
        for number, batch in enumerate(batches[left_out:], left_out):
            with model.no_sync() if afterwards or number < quiet(many) else nullcontext():
                (loss(model(batch)) / divide(many)).backward()
        if afterwards:
            gradients = [parameter.grad for parameter in model.parameters()]
            vector_to_parameters(afterwards(parameters_to_vector(gradients)), gradients)

    return by_hand


def all_at_once(model: Any, batches: list[torch.Tensor], loss: Any) -> None:
    loss(model(torch.cat(batches))).backward()


def averaged(gradient: torch.Tensor) -> torch.Tensor:
    minidist.all_reduce(gradient, minidist.ReduceOp.AVG)
    return gradient


def averaged_in_parts(gradient: torch.Tensor) -> torch.Tensor:
    for part in gradient.split([48, 8, 24, 3]):  # the parameters
        minidist.all_reduce(part, minidist.ReduceOp.AVG)
    return gradient


def of_two(gradient: torch.Tensor) -> torch.Tensor:
    minidist.all_reduce(gradient)
    return gradient / 2


def gathered(gradient: torch.Tensor) -> torch.Tensor:
    everyones = gradient.new_empty(dist.get_world_size(), len(gradient))
    minidist.all_gather_into_tensor(everyones, gradient)
    return everyones.mean(0)


def by_torch(gradient: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def saver(
    *,
    ranks: tuple[int, ...] = (0,),
    wait: bool = True,
    move: Callable[[Path, Path], object] = os.replace,
    leave: bool = False,
) -> Callable[[dict[str, Any], Path], None]:
    """Right as it stands, with a knob for each way to get it wrong."""

    def by_hand(state: dict[str, Any], path: Path) -> None:
        if dist.get_rank() in ranks:
            beside = path.with_name(f"{path.name}.{dist.get_rank()}")
            torch.save(state, beside)
            move(beside, path)
            if leave:
                beside.touch()
        if wait:
            dist.barrier()

    return by_hand


def under_one_name(state: dict[str, Any], path: Path) -> None:
    saver()(state, path.with_name("model.pt"))


def with_rank_1(state: dict[str, Any], path: Path) -> None:
    """Rank 1 waits for rank 0; the others do not."""
    saver(wait=False)(state, path)
    if dist.get_rank() == 0:
        dist.send(torch.zeros(1), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)


def after_a_while(state: dict[str, Any], path: Path) -> None:
    """The others are sure that rank 0 has done by then."""
    saver(wait=False)(state, path)
    time.sleep(0 if dist.get_rank() == 0 else 2.5)


def at_once(state: dict[str, Any], path: Path) -> None:
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def in_memory_first(state: dict[str, Any], path: Path) -> None:
    if dist.get_rank() == 0:
        torch.save(state, written := io.BytesIO())
        path.write_bytes(written.getvalue())
    dist.barrier()


def keeps_a_backup(beside: Path, path: Path) -> None:
    path.rename(path.with_name("backup"))
    beside.rename(path)


def removes_first(beside: Path, path: Path) -> None:
    path.unlink()
    os.replace(beside, path)


def elsewhere(state: dict[str, Any], path: Path) -> None:
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as other:
            torch.save(state, Path(other) / "new")
            os.replace(Path(other) / "new", path)
    dist.barrier()
