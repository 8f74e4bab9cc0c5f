"""Autograd's way back through a module: where it begins, each gradient, where it ends.

[Note: where backward begins] At the first gradient of an output of the module; or of a parameter,
if no output was found or the loss went round it. As in PyTorch, the forward decides whether its
backward is synchronized. If no output could be found, all backwards do as the last forward says.

[Note: where backward ends] Autograd offers no hook for the end of a backward, only for the end of
the pass in which one asks: `queue_callback`. DDP, FSDP2 and this file use that. A pass that raises
never makes the call; autograd drops the callback, which a weak reference to it reveals. (A GPU's
thread may hold it a little longer, so autograd is also asked whether a pass is running now.)

[Note: a gradient without a backward] `torch.autograd.grad` passes the outputs too, but gives no
parameter its gradient. So the owner hears of a backward when the first parameter gets one: what
ranks do together must not depend on what one of them asks for alone.

[Note: who holds whom] A parameter outlives the wrappers around it, so its hook holds nothing, or in
a notebook that wraps twice the old wrapper would still be at work. A graph that can go backward
holds its wrapper.

[Note: in and out] Backward enters a module when one of its outputs has its gradient: we hook that
tensor. It has left when all inputs have theirs. But an input may be used elsewhere too, so the
module gets a view of it, whose gradient is complete as soon as the module's own share is. Autograd
visits last what was recorded first: when it reaches that view, it has been everywhere in the
module, at the parameters too.

[Note: outputs that are views] A write into a tensor, as `x += y`, replaces what made it. Our hook
stays with what it was on, and is still called. But a view's history is written anew, without us, so
we also hook what made the tensor under the view, if that was made in the module.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Protocol
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves, tree_map_only

from minidist.profiler.spans import COMPUTE
from minidist.profiler.timeline import NOTHING, Mark, mark


def in_backward() -> bool:
    """True while autograd goes back, so that a forward is the second one of a checkpoint."""
    # Private; in torch 2.11 as in 2.13, and FSDP2 asks it the same. There is no public way.
    return bool(torch._C._current_graph_task_id() != -1)


class BackwardPass:
    """The backward of one wrapper or of one model: begun by the first hook, ended by autograd."""

    def __init__(self) -> None:
        self._callback: ReferenceType[Callable[[], None]] | None = None  # None: closed
        self.mark: Mark = NOTHING  # the last pass in the timeline; whoever began it ends it

    @property
    def under_way(self) -> bool:
        """True while autograd runs the pass that `begin` was called in."""
        return self._callback is not None and self._callback() is not None and in_backward()

    @property
    def raised(self) -> bool:
        """True if the last pass raised, so that its end never came; until `close`."""
        return self._callback is not None and not self.under_way

    @property
    def problem(self) -> str:
        """The reason why ranks cannot go on together; "" if the last pass has ended."""
        if self.under_way:
            return "its backward is still under way"
        if self.raised:
            return "its last backward raised, so its gradients were not averaged, or not all"
        return ""

    def begin(self, at_end: Callable[[], object], device: torch.device) -> None:
        """Call `at_end` when the pass that runs now is over; what it raises, `backward()` raises.

        Call it inside a hook of autograd, once a pass: not while it is `under_way`.
        """

        def callback() -> None:
            at_end()
            self.close()

        self._callback, self.mark = ref(callback), mark("backward", COMPUTE, device)
        Variable._execution_engine.queue_callback(callback)

    def close(self) -> None:
        self._callback = None


class Owner(Protocol):
    """A wrapper that is told of a backward; what it raises, `backward()` raises."""

    def backward_begins(self, sync: bool) -> None:
        """The first gradient has arrived; again, if only now it is known to be synchronized."""

    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        """A parameter's `grad` is there, and final unless it comes twice."""

    def backward_ends(self, sync: bool) -> None:
        """Autograd has made all gradients."""


class Backward(BackwardPass):
    """Tells its owner when a backward begins, of each gradient, and when it ends.

    Its `hook` is for `register_post_accumulate_grad_hook` of each parameter.
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = ref(owner)  # [Note: who holds whom]
        self.hook: Callable[[Parameter], None] = partial(_arrive, ref(self))
        self.arrivals: dict[Parameter, None] = {}  # order in this or the last backward
        self._expected: bool | None = None  # a backward: whether to be synchronized; None: none is
        self._opaque = False  # no tensor was found in the last forward's output
        self._sync = False  # the present pass is synchronized
        self._announced = False  # the owner has heard of it

    def expect(self, output: object, sync: bool) -> None:
        """A forward has returned `output`: see [Note: where backward begins]."""
        owner = self._owner()
        assert owner is not None
        self._expected, self._opaque = sync, True
        for tensor in tensors(output):
            # A hook on a leaf would stay for good, and it may be a parameter.
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(partial(self._first, owner, sync, tensor.device))  # type: ignore[no-untyped-call]
                self._opaque = False

    def check(self) -> None:
        """Raise RuntimeError if a pass has not ended, where a forward or another one begins."""
        if self._sync and (self._announced or self.under_way) and self.problem:
            raise RuntimeError(
                f"rank {dist.get_rank()}: DistributedDataParallel is out of step with the other "
                f"ranks: {self.problem}. Zero the gradients and wrap the module anew, on all ranks"
            )

    def arrive(self, owner: Owner, parameter: Parameter) -> None:
        if not self.under_way:
            if self._expected is None:  # it is a backward round the wrapper
                return
            self._begin(owner, self._expected, parameter.device)
        if not self._announced:
            owner.backward_begins(self._sync)
            self._announced, self.arrivals = True, {}
        self.arrivals[parameter] = None
        owner.gradient_arrives(parameter, self._sync)

    def _first(self, owner: Owner, sync: bool, device: torch.device, _: object) -> None:
        if not self.under_way:
            self._begin(owner, sync, device)
        elif sync and not self._sync:  # one loss of two forwards, the other in no_sync
            self._sync = True
            if self._announced:  # what has arrived before is averaged too, at the end
                owner.backward_begins(True)

    def _begin(self, owner: Owner, sync: bool, device: torch.device) -> None:
        self.check()
        end = partial(self._end, owner, self._expected)
        self._sync, self._announced, self._expected = sync, False, None  # also if it raises
        self.begin(end, device)

    def _end(self, owner: Owner, expected: bool | None) -> None:
        if self._announced:
            self.mark.end()
            owner.backward_ends(self._sync)
        if self._opaque or not self._announced:  # another may follow; this one was none
            self._expected = expected


def _arrive(backward: ReferenceType[Backward], parameter: Parameter) -> None:
    if (alive := backward()) and (owner := alive._owner()):
        alive.arrive(owner, parameter)


def watched(parameter: torch.Tensor) -> bool:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(isinstance(each, partial) and each.func is _arrive for each in hooks.values())


# ---- where autograd comes into a module and where it leaves it ----


def on_entry(output: object, inputs: object, callback: Callable[[], None]) -> bool:
    """Call back when backward comes in by one of the outputs; return whether it can."""
    if not torch.is_grad_enabled():
        return False
    given = {tensor if tensor._base is None else tensor._base for tensor in tensors(inputs)}
    outputs = [each for each in tensors(output) if each.requires_grad and not each.is_leaf]
    for tensor in outputs:
        tensor.register_hook(lambda _: callback())  # type: ignore[no-untyped-call]
        under = tensor._base
        if under is not None and under.grad_fn and under not in given:
            under.grad_fn.register_prehook(lambda _: callback())
    return bool(outputs)


def on_exit(inputs: Any, callback: Callable[[], None]) -> Any:
    """Call back when backward has left by all inputs; return the inputs to use instead."""
    if not torch.is_grad_enabled():
        return inputs
    inputs = tree_map_only(torch.Tensor, lambda t: t.view_as(t) if t.requires_grad else t, inputs)
    leaves = (each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor))
    if views := [each for each in leaves if each.requires_grad]:
        register_multi_grad_hook(views, lambda _: callback())
    return inputs


def cast(values: Any, dtype: torch.dtype | None) -> Any:
    """The floating-point tensors among the values in another dtype; None: as they are."""

    def to(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return values if dtype is None else tree_map_only(torch.Tensor, to, values)


def tensors(values: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in containers, and in dataclasses, which count as leaves there."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors([getattr(leaf, field.name) for field in fields(leaf)])
