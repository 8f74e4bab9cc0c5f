"""A rank's computing in a step: how many numbers it multiplies, and in which lines.

A rank that computes what others compute, too, gets the right results and sends the right bytes; a
clock would show it, and other work on the machine as well. So products are counted, whatever their
shapes and however they are called. Everything else counts as many times as its largest tensor has
numbers, so that a product written out, or one row at a time, is seen.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from course.ask.verdict import Wrong
from course.project import journal

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

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines = Counter[str]()

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
        self.lines[journal.learners_line()] += 0 if func.is_view else count
        return out


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
