"""A rank's computing in a step: how many numbers it multiplies, and what it makes in which lines.

A rank that computes what others compute, too, gets the right results and sends the right bytes; a
clock would show it, and other work on the machine as well. So products are counted, whatever their
shapes and however they are called. Everything else counts as many times as its largest tensor has
numbers, so that a product written out, or one row at a time, is seen.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures.thread import _WorkItem
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from course.ask.verdict import Wrong, learners, learners_line

# An unmasked product is twice a causal one; backward may compute forward again, or its masks.
MORE = 2.5  # times what from_scratch computes; on 5 ranks, one that computes all does 5 times that
FLASH = "_scaled_dot_product_flash_attention"
PRODUCTS: dict[Any, Callable[..., int]] = flop_registry | {
    getattr(torch.ops.aten, f"{FLASH}_for_cpu{way}"): flop_registry[
        getattr(torch.ops.aten, f"{FLASH}{way}")
    ]
    for way in ("", "_backward")
}


class Computed(TorchDispatchMode):
    """A count of multiplications by the learner's line; backward has none of its own."""

    def __init__(self, lines: Counter[str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines = Counter[str]() if lines is None else lines
        self.left = ""  # the first line by which numbers leave torch, and are not counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if formula := PRODUCTS.get(func._overloadpacket):
            count = formula(*args, **kwargs, out_val=out) // 2
        else:
            every = tree_leaves((args, kwargs, out))
            count = max((each.numel() for each in every if isinstance(each, Tensor)), default=0)
        self.lines[learners_line()] += 0 if func.is_view else count
        return out


@contextmanager
def counted() -> Iterator[Computed]:
    """Within it all is counted that this thread computes, and those that it sets to work."""
    count = Computed()

    def also(run: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: Any) -> object:
            known = _get_current_dispatch_mode()
            with Computed(count.lines) if known is None else nullcontext():
                return run(*args)

        return counting

    def seen(leave: Callable[..., object]) -> Callable[..., object]:
        def leaving(tensor: Tensor, *args: Any, **kwargs: Any) -> object:
            caller = sys._getframe(1)  # the library's own ways out are none of the learner's
            if tensor.is_floating_point():
                line = learners(caller.f_code.co_filename, caller.f_lineno)
                count.left = count.left or line
            return leave(tensor, *args, **kwargs)

        return leaving

    with ExitStack() as stack:
        for kind in (Thread, _WorkItem):
            stack.enter_context(patch.object(kind, "run", also(kind.run)))
        for way in ("numpy", "__array__", "__dlpack__"):
            stack.enter_context(patch.object(Tensor, way, seen(getattr(Tensor, way))))
        stack.enter_context(count)
        yield count


class Made(TorchDispatchMode):
    """The bytes of tensors that each of the learner's lines has made, when they are most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive, self.most = Counter[str](), Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and remember which line's its new memory is, until that is freed."""
        out, line = func(*args, **(kwargs or {})), learners_line()
        known = {_storage(each) for each in tree_leaves((args, kwargs))}
        for storage in {_storage(each) for each in tree_leaves(out)} - known:
            if line and storage:
                self.alive[line] += storage.nbytes()
                weakref.finalize(storage, self.alive.subtract, {line: storage.nbytes()})
        if self.alive.total() > self.most.total():
            self.most = self.alive.copy()
        return out


def _storage(each: object) -> Any:
    return each.untyped_storage() if isinstance(each, Tensor) else None


def compare_computed(own: Computed, least: Computed, part: str) -> None:
    """Raise Wrong if a step computes more than is enough; `part` says what is a rank's."""
    many, enough = own.lines.total(), least.lines.total()
    if many > MORE * enough:
        lines = Counter({line: count for line, count in own.lines.items() if line})
        most = f", the most of them in {lines.most_common(1)[0][0]}" if lines else ""
        raise Wrong(
            f"the results are right, and this rank computes {many / enough:.1f} times what it has "
            f"to: {many:,} multiplications in a step{most}; {enough:,} are enough. {part}"
        )
