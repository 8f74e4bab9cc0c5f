"""One pass of autograd: whether it is under way, whether it raised, and a call at its end.

[Note: where backward ends] Autograd offers no hook for the end of a backward, only for the end of
the pass in which one asks: `queue_callback`. DDP, FSDP2 and this file use that. A pass that raises
never makes the call; autograd drops the callback, which a weak reference to it reveals. (A GPU's
thread may hold it a little longer, so autograd is also asked whether a pass is running now.)
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ReferenceType, ref

from torch.autograd import Variable

from minidist.parallel.autograd.module_edges import in_backward


class BackwardPass:
    """The backward of one wrapper or of one model: begun by the first hook, ended by autograd."""

    def __init__(self) -> None:
        self._callback: ReferenceType[Callable[[], None]] | None = None  # None: closed

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
        """Why ranks cannot go on together; "" if the last pass has ended."""
        if self.under_way:
            return "its backward is still under way"
        if self.raised:
            return "its last backward raised, so its gradients were not averaged, or not all"
        return ""

    def begin(self, at_end: Callable[[], object]) -> None:
        """Call `at_end` when the pass that runs now is over; what it raises, `backward()` raises.

        Call it inside a hook of autograd, once a pass: not while it is `under_way`.
        """

        def callback() -> None:
            at_end()
            self.close()

        self._callback = ref(callback)
        Variable._execution_engine.queue_callback(callback)

    def close(self) -> None:
        """The pass is over, or given up after it raised."""
        self._callback = None
