"""torch's and minidist's own, while a learner's function must do without them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import minidist
from course.ask import wire
from course.ask.verdict import OURS, TORCHS, Wrong
from minidist.collectives.call import Call
from minidist.parallel.fsdp.unit import Unit

# torch's function → methods of a process group through which it goes, however it was imported.
METHODS = {
    "all_reduce": "allreduce allreduce_coalesced",
    "all_gather": "allgather",
    "all_gather_into_tensor":
        "_allgather_base all_gather_single allgather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor":
        "_reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall",
    "all_to_all_single": "alltoall_base all_to_all_single",
    **{name: name for name in ("broadcast", "gather", "scatter", "reduce")},
}  # fmt: skip
MESSAGES = {"send": "isend", "recv": "irecv", "recv_anysource": "irecv"}  # method → function


def without_torch(instead: str, allowed: str = "") -> AbstractContextManager[None]:
    """Inside `with`, torch.distributed's collectives raise Wrong, except one that is allowed.

    So does the end of the block, in case the function has caught it. `instead`: what the exercise
    is to be solved with, for the message ("`broadcast`").
    """
    refused = [
        (dist.ProcessGroup, method, f"torch.distributed's {name}")
        for name, methods in METHODS.items()
        for method in methods.split()
        if hasattr(dist.ProcessGroup, method) and name != allowed
    ]
    return _without(refused, instead)


def without_minidist(instead: str) -> AbstractContextManager[None]:
    """The same for minidist's collectives."""
    return _without([(Call, "__init__", "minidist's collectives")], instead)


def without_wrappers(instead: str) -> AbstractContextManager[None]:
    """The same for the classes of minidist that wrap a model or an optimizer."""
    kinds = [minidist.DistributedDataParallel, minidist.ZeroOptimizer]
    methods = [(kind, "__init__", f"minidist's {kind.__name__}") for kind in kinds]
    methods.append((Unit, "__init__", "minidist's fully_shard"))
    return _without(methods, instead)


@contextmanager
def nothing_but(instead: str) -> Iterator[Callable[[], str]]:
    """As `without_torch`; and messages that neither minidist nor the course posts raise Wrong.

    Yields a function that tells what else has gone over the network by now, in a sentence; or "".
    """
    before, enough = wire.sent(), 0

    def noted(method: str, _: object, tensors: Iterable[torch.Tensor], *__: object) -> bool:
        nonlocal enough
        if _is_ours():
            payload = sum(tensor.nbytes for tensor in tensors) if method == "send" else 0
            enough += wire.HEADERS["send" if method == "send" else "recv"] + payload
            return True
        return False

    def noted_barrier(*_: object) -> bool:  # as good as any other way to wait
        nonlocal enough
        enough += sum(wire.HEADERS.values()) * dist.get_world_size().bit_length()
        return True

    with ExitStack() as stack:
        stack.enter_context(without_torch(instead))
        for method, name in MESSAGES.items():
            refused = (dist.ProcessGroup, method, f"torch.distributed's {name}")
            stack.enter_context(_without([refused], instead, partial(noted, method)))
        barrier = (dist.ProcessGroup, "barrier", "torch.distributed's barrier")
        stack.enter_context(_without([barrier], instead, noted_barrier))
        yield lambda: wire.too_much(wire.sent() - before, enough, instead)


def _is_ours() -> bool:
    """True if minidist or the course has made the call of torch.distributed that has come here."""
    frame = sys._getframe()
    while frame and frame.f_code.co_filename.startswith((__file__, TORCHS)):
        frame = frame.f_back  # type: ignore[assignment]
    return bool(frame) and frame.f_code.co_filename.startswith(OURS)


@contextmanager
def _without(
    methods: Iterable[tuple[type, str, str]],
    instead: str,
    unless: Callable[..., bool] = lambda *_: False,
) -> Iterator[None]:
    """Inside `with`, the methods raise Wrong, unless that is true of their arguments."""
    called: list[Wrong] = []

    def forbid(name: str, method: Any) -> Any:
        wrong = Wrong(f"your function calls {name}. Use {instead} and nothing else.")

        def call(*args: Any, **how: Any) -> Any:
            if unless(*args):
                return method(*args, **how)
            called.append(wrong)
            raise wrong

        return call

    with ExitStack() as patches:
        for kind, method, name in methods:
            patches.enter_context(patch.object(kind, method, forbid(name, getattr(kind, method))))
        yield
    if called:
        raise called[0]
