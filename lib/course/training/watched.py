"""A `Comm` that knows how many bytes of gathered weights are still in memory."""

# mypy: disable-error-code=no-untyped-call
from collections.abc import Callable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from minidist.comm.comm import Around, Comm, Pending


class Watched(Around):
    """Remembers the output of each all-gather by a weak reference, which does not keep it alive.

    The `Comm` inside must not keep outputs either: `Ours(algorithm="shared_memory", check=False)`
    does not.
    """

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.largest = 0  # bytes of one all-gather's output, so far
        self._gathered: dict[StorageWeakRef, int] = {}

    def around(
        self, name: str, full: Tensor, call: Callable[[bool], Pending], async_op: bool
    ) -> Pending:
        """Make the call; note what it gathers into."""
        if name == "all_gather":
            storage = full.untyped_storage()
            self._gathered[StorageWeakRef(storage)] = storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())
        return call(async_op)

    def gathered_bytes(self) -> int:
        """Bytes of the outputs that somebody still holds."""
        alive = [nbytes for each, nbytes in self._gathered.items() if not each.expired()]
        return sum(alive)
