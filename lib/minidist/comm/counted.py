"""`Counted`: a wrapper's calls, counted on their way to another `Comm`."""

from typing import NamedTuple

from torch import Tensor

from minidist.collectives.call import record
from minidist.collectives.runtime.executor import Sent
from minidist.comm.comm import Around, Comm, Pending, Start


class CountedCall(NamedTuple):
    """One call: of what, and the bytes of an all-gather's output, or of what is reduced or sent."""

    name: str
    nbytes: int


class Counted(Around):
    """A `Comm` that counts what goes through another one; `calls` are those so far."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.calls: list[CountedCall] = []
        self._logs: list[list[Sent]] = []  # one per call: an asynchronous one goes on writing

    @property
    def bytes_sent(self) -> int:
        return sum(message.nbytes for log in self._logs for message in log)

    @property
    def messages_sent(self) -> int:
        return sum(map(len, self._logs))

    def clear(self) -> None:
        self.calls.clear()
        self._logs.clear()

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        self.calls.append(CountedCall(name, full.nbytes))
        with record() as log:
            self._logs.append(log)
            return call(async_op)
