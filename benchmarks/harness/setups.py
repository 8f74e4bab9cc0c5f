"""Where to measure (ranks, devices, transport), and how much."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import minidist

KIB, MIB = 1 << 10, 1 << 20


class Setup(NamedTuple):
    """Some ranks. `shared`: all on the first GPU, so they communicate through host memory."""

    ranks: int
    device: str = "cpu"
    shared: bool = False

    @property
    def name(self) -> str:
        """For a record, such as "2 ranks on the CPU, Gloo"."""
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        if self.device == "cpu":
            return f"{ranks} on the CPU, Gloo"
        if self.shared:
            return f"{ranks} on one GPU, pinned host buffers, Gloo"
        return f"{ranks}, a GPU for each, NCCL"

    def launch(self, fn: Callable[..., Any], *args: Any, timeout: float) -> list[Any]:
        """As `minidist.launch`. `fn` must be importable: cloudpickle may be missing."""
        first = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
        with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": first} if self.shared else {}):
            return minidist.launch(fn, self.ranks, *args, device=self.device, timeout=timeout)


@dataclass(frozen=True)
class Scope:
    """Where to measure, and how much; the defaults are those of the records made on a CPU."""

    setups: tuple[Setup, ...]  # on which to check and to time
    rounds: int | None = 15  # in which each way is timed; None: as many as the time allows
    message_bytes: tuple[int, ...] = tuple(4 * KIB << (2 * k) for k in range(8))  # to 64 MiB
    part_bytes: int = 5 * MIB  # of one part of the largest tensor in the checks: several messages
    copy_bytes: int = 1 << 30  # to find the bandwidth of memory
    width: int = 192  # of the model whose training is timed
    precisions: tuple[str, ...] = ("fp32",)  # in which it is timed: also "bf16"
    memory_batch: tuple[int, int] = (1, 8)  # rows and tokens: state, and hardly any activations
    tries: int = 2  # launches for each measurement of memory, of which the smallest counts
    widths: tuple[int, ...] = ()  # of the models that DDP and FSDP are compared with
    batches: tuple[int, ...] = ()  # rows of a rank; the largest is sought that fits into memory
    earlier: dict[str, Any] = field(default_factory=dict)  # the record of this name that there is

    @property
    def device(self) -> str:
        """The type of all setups' devices."""
        return self.setups[0].device


def on_gpus(gpus: int) -> Scope:
    """One rank, one rank for each GPU, and 2 and 4 ranks on one GPU."""
    alone = sorted({1, min(gpus, 8)})  # sums over up to 8 ranks are exact in bf16
    setups = [Setup(ranks, "cuda") for ranks in alone]
    setups += [Setup(ranks, "cuda", shared=True) for ranks in (2, 4)]
    return Scope(
        tuple(setups),
        rounds=None,
        message_bytes=tuple(4 * KIB << (2 * k) for k in range(9)),  # to 256 MiB
        width=512,
        precisions=("fp32", "bf16"),
        memory_batch=(4, 64),
        tries=1,
    )
