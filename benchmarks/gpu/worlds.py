"""On what to measure: how many ranks, on which devices, over which transport."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import minidist

KIB, MIB = 1 << 10, 1 << 20


class World(NamedTuple):
    """Some ranks. `shared`: there are more of them than GPUs, so they talk through host memory."""

    ranks: int
    device: str
    shared: bool = False

    @property
    def name(self) -> str:
        """What it is, in words."""
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        if self.device == "cpu":
            return f"{ranks} on the CPU, Gloo"
        if self.shared:
            return f"{ranks} on one GPU, pinned host buffers, Gloo"
        return f"{ranks}, a GPU for each, NCCL"

    def launch(self, fn: Callable[..., Any], *args: Any, timeout: float) -> list[Any]:
        """As `minidist.launch`. `fn` is an importable module's: cloudpickle may be missing."""
        with _one_gpu() if self.shared else nullcontext():
            return minidist.launch(fn, self.ranks, *args, device=self.device, timeout=timeout)


@dataclass(frozen=True)
class Where:
    """What there is to measure on, and how much of it.

    Attributes:
        worlds: which to check and to time.
        sizes: bytes of the messages that are timed.
        large: bytes of one part of a large tensor in the checks; more than a message holds.
        copy: bytes that are copied to find the limits.
        width: of the model whose training is timed.
    """

    worlds: tuple[World, ...]
    sizes: tuple[int, ...]
    large: int
    copy: int
    width: int = 32

    @property
    def device(self) -> str:
        """ "cuda"; "cpu" in tests."""
        return self.worlds[0].device


def of_gpus(gpus: int) -> Where:
    """One rank, one rank for each GPU, and 2 and 4 ranks on one GPU."""
    alone = sorted({1, min(gpus, 8)})  # up to 8 ranks' numbers sum up exactly in bf16
    worlds = [World(ranks, "cuda") for ranks in alone]
    worlds += [World(ranks, "cuda", shared=True) for ranks in (2, 4)]
    sizes = tuple(4 * KIB << (2 * k) for k in range(9))  # 4 KiB to 256 MiB
    return Where(tuple(worlds), sizes, large=5 * MIB, copy=1 << 30, width=768)


@contextmanager
def _one_gpu() -> Iterator[None]:
    """Show the ranks to be launched the first GPU alone."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = (seen or "0").split(",")[0]
    try:
        yield
    finally:
        if seen is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = seen
