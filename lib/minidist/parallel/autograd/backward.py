"""When autograd goes back through a module: where it begins, each gradient, where it ends.

[Note: where backward begins] At the first gradient of an output of the module, or at the first
gradient of a parameter, if no output was found or the loss went round it. The forward before
decides whether the backward is synchronised, as in PyTorch. Of an output that we cannot look into
it is not known how many backwards follow: all do as the last forward says.

[Note: where backward ends] Autograd calls us back when the pass is over in which we asked it to. It
does not where the pass raises; then it drops the callback, and that we can see. (A GPU's thread may
hold it a moment longer; so autograd is also asked whether it is going back.)

An optimizer sees no forward. There it is asked at the first gradient of a parameter whether this
backward is to be synchronised. (In a checkpoint with use_reentrant=True that gradient may be made
in a backward inside another: then the inner one counts as one of its own.)

[Note: a gradient without a backward] `torch.autograd.grad` passes the outputs too, but gives no
parameter its gradient. So the owner is told when the first parameter gets one, and not before: what
ranks do together must not hang on what one of them asks for alone.

[Note: who holds whom] A parameter outlives the wrappers round it, so its hook holds nothing, or in
a notebook that wraps twice the old wrapper would still be at work. A graph that can go backward
holds its wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol
from weakref import ReferenceType, finalize, ref

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn import Parameter

from minidist.parallel.autograd.module_edges import in_backward, tensors
from minidist.profiler.spans import COMPUTE
from minidist.profiler.timeline import NOTHING, Mark, mark


class Owner(Protocol):
    """What is told of every backward."""

    def backward_begins(self, sync: bool) -> None:
        """The first gradient of a parameter is there."""

    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        """`parameter.grad` is whole."""

    def backward_ends(self, sync: bool) -> None:
        """All gradients are there; calls `close`. What it raises, `backward()` raises."""


class Backward:
    """Tells its owner when a backward begins, of each gradient, and when it ends.

    Args:
        parameters: those that get gradients.
        owner: is held by [Note: who holds whom].
        ask: called with an owner that sees no forward: is a backward that begins synchronised?
        name, remedy: for the message after a backward that raised: the owner's, and what to do.

    Attributes:
        arrivals: the parameters of the present backward, or the last one, in the order of arrival.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        owner: Owner,
        ask: Callable[[Any], bool] | None = None,
        name: str = "DistributedDataParallel",
        remedy: str = "wrap the module anew",
    ) -> None:
        self._owner, self._ask, parameters = ref(owner), ask, list(parameters)
        self._name, self._remedy = name, remedy
        self._device = parameters[0].device
        self.arrivals: dict[Parameter, None] = {}
        self._expected: bool | None = None  # a backward: whether to be synchronised; None: none is
        self._last: bool | None = None  # what was expected before this pass
        self._opaque = False  # the last forward's output: no tensor was found
        self._sync = False  # the present pass is synchronised
        self._told = False  # the owner knows of it
        self._mark: Mark = NOTHING
        self._callback: ReferenceType[Callable[[], None]] | None = None  # None: no pass
        self.watch(parameters)

    def watch(self, parameters: Iterable[Parameter]) -> None:
        """Tell of these parameters' gradients too."""
        for parameter in parameters:
            hook = partial(_arrive, ref(self))
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            finalize(self, handle.remove)

    @property
    def under_way(self) -> bool:
        """Whether autograd is going back, and holds our callback."""  # [Note: where backward ends]
        return self._callback is not None and self._callback() is not None and in_backward()

    def expect(self, output: object, sync: bool) -> None:
        """A forward has returned `output`: see [Note: where backward begins]."""
        owner = self._owner()
        assert owner is not None  # it calls us
        first = partial(self._first, owner, sync)
        self._expected, self._opaque = sync, True
        for tensor in tensors(output):
            # A hook on a leaf would stay for good, and it may be a parameter.
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(first)  # type: ignore[no-untyped-call]
                self._opaque = False

    def check(self) -> None:
        """Raise RuntimeError if a pass has not ended, where a forward or another one begins."""
        if self._callback is None or not self._sync or not (self._told or self.under_way):
            return
        what = "its last backward raised, so its gradients were not averaged, or not all"
        if self.under_way:
            what = "its backward is still under way (a forward cannot be a part of it)"
        raise RuntimeError(
            f"rank {dist.get_rank()}: {self._name} is out of step with the other ranks: "
            f"{what}. Zero the gradients and {self._remedy}, on all ranks"
        )

    def close(self) -> None:
        """The pass has come to its end."""
        self._callback = None
        if self._opaque or not self._told:  # another may follow; this one was none
            self._expected = self._last

    def arrive(self, parameter: Parameter) -> None:
        """Autograd has made a gradient."""
        owner = self._owner()
        if owner is None:
            return
        if not self.under_way:
            sync = self._ask(owner) if self._ask else self._expected
            if sync is not None:
                self._begin(owner, sync)
        if not self.under_way:  # it is a backward round the wrapper
            return
        if not self._told:
            owner.backward_begins(self._sync)
            self._told, self.arrivals = True, {}
        self.arrivals[parameter] = None
        owner.gradient_arrives(parameter, self._sync)

    def _first(self, owner: Owner, sync: bool, _: torch.Tensor) -> None:
        """An output has its gradient; it may not be the first in this pass."""
        if not self.under_way:
            self._begin(owner, sync)
        elif sync and not self._sync:  # one loss of two forwards, the other in no_sync
            self._sync = True
            if self._told:  # what has arrived before is averaged too, at the end
                owner.backward_begins(True)

    def _begin(self, owner: Owner, sync: bool) -> None:
        self.check()
        self._last, self._expected = self._expected, None
        self._mark = mark("backward", COMPUTE, self._device)
        callback = partial(self._end, owner)
        self._callback, self._sync, self._told = ref(callback), sync, False
        Variable._execution_engine.queue_callback(callback)

    def _end(self, owner: Owner) -> None:
        if self._told:
            self._mark.end()
            owner.backward_ends(self._sync)
        else:
            self.close()


def _arrive(backward: ReferenceType[Backward], parameter: Parameter) -> None:
    """The hook of a parameter."""
    alive = backward()
    if alive is not None:
        alive.arrive(parameter)


def watched(parameter: torch.Tensor) -> bool:
    """Whether there is a `Backward` that is told of this parameter's gradients."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(
        isinstance(hook, partial) and hook.func is _arrive and hook.args[0]() is not None
        for hook in hooks.values()
    )
