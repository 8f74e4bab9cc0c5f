"""A flight recorder: the last collectives that this rank has entered, in a file that outlives it.

A rank's file is memory-mapped, so it can be read while the rank hangs and after a SIGKILL. It has
lines of one length: a state, then JSON. The first line is about the rank, the others are a ring.
Of each group the members stand in a file beside it: they may be thousands, too many for a line.

[Note: torch's own calls] Every collective of torch.distributed, called from Python or from C++ as
in DDP's reducer, is an operator of the library "c10d" and goes through PyTorch's dispatcher. While
we record, a kernel of ours stands at the key BackendSelect, the last before the backend's own: it
notes the call and passes it on. PyTorch's own flight recorder knows the same calls, but not
minidist's, and it dies with its process.

[Note: program order] Calls are numbered in the order in which the program makes them, for each
group: an asynchronous one when it is called, not when its turn comes in another thread. So the
same program has the same numbers on every rank. A send and its recv are one call, a
message, in a group of its two ends.
"""

import faulthandler
import fcntl
import json
import mmap
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from minidist.launch.outcome import only_echoes

STATE, LINE, KEPT = 8, 1024, 64  # bytes of a state and of a line; calls in the ring
STACK_SIGNAL = signal.SIGUSR2  # on it a rank writes down where it stands
BACKEND_SELECT: Any = torch._C.DispatchKey.BackendSelect
OPERATORS = (  # all in c10d that return a Work, but for recv_any_source_
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ _allgather_base_ gather_ "
    "allgather_coalesced_ allgather_into_tensor_coalesced_ reduce_scatter_ _reduce_scatter_base_ "
    "reduce_scatter_tensor_coalesced_ scatter_ alltoall_ alltoall_base_ barrier send recv_"
)
MESSAGE, TAGS = "message {}→{}", 10_000  # a message's name; of how many tags they are recorded
Leave = Callable[[str], None]  # tells in what state this rank has left a call
SPELLING = [("allr", "all_r"), ("allg", "all_g"), ("allto", "all_to_"), ("_base", "_single")]


@contextmanager
def record(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Record this rank's collectives in `folder` inside the `with` block, minidist's and torch's.

    All ranks use the same folder, on a disk that they share. On the signal SIGUSR2 the rank also
    writes down its stack there, and once more on SIGTERM, by which torchrun ends ranks, and in a
    crash.

    A call that is "queued" was handed to a backend that does not tell when it is done: to a GPU's
    stream, or Gloo's reduce_scatter and messages.
    """
    global _current
    if _current is not None:
        raise RuntimeError(f"rank {_current.rank}: diagnose.record: another one is recording")
    rank, ranks = _who_am_i()
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ValueError(f"rank {rank}: diagnose.record: folder: expected a path, got {folder!r}")
    (path := Path(folder)).mkdir(parents=True, exist_ok=True)
    with suppress(ValueError):  # a thread may not
        if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:  # one that comes late ends no rank
            signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    with ExitStack() as stack:
        lock = stack.enter_context((path / f"{rank}.alive").open("w"))
        fcntl.lockf(lock, fcntl.LOCK_EX)  # until the process has gone, however it goes
        for number, name in ((STACK_SIGNAL, "stack"), (signal.SIGTERM, "last")):
            file = stack.enter_context((path / f"{rank}.{name}").open("w"))
            ends = number == signal.SIGTERM
            faulthandler.register(number, file=file, all_threads=False, chain=ends)
            stack.callback(faulthandler.unregister, number)
        if not faulthandler.is_enabled():  # else whoever has enabled it is told of a crash
            faulthandler.enable(file)
            stack.callback(faulthandler.disable)
        _current = recorder = Recorder(path / f"{rank}.calls", rank, ranks)
        stack.enter_context(_torch_too(recorder))
        try:
            yield
            recorder.note("returned")
        except BaseException as error:
            state = "echoed" if only_echoes(error) else "raised"
            recorder.note(state, f"{type(error).__name__}: {error}")
            raise
        finally:
            _current = None


class Recorder:
    """A rank's file."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        with (aside := path.with_suffix(".new")).open("w+b") as file:
            file.truncate(LINE * (1 + KEPT))
            self._memory = mmap.mmap(file.fileno(), 0)
        self._groups = path.with_suffix(".groups")
        self._groups.write_text("")
        self._lock = threading.Lock()
        self._calls = 0
        self._numbers: Counter[str] = Counter()  # group → its calls
        self.note("running")
        aside.rename(path)

    def note(self, state: str, error: str = "") -> None:
        """Write the first line: what has become of the rank."""
        who: dict[str, Any] = {"rank": self.rank, "ranks": self.ranks, "pid": os.getpid()}
        who |= {"host": socket.gethostname(), "time": time.time(), "error": shorten(error, 100)}
        self._memory[:LINE] = _line(state, who)  # at once: it may be killed meanwhile

    def enter(
        self,
        name: str,
        group: ProcessGroup,
        tensors: Sequence[torch.Tensor],
        how: str,
        ends: Sequence[int] = (),
    ) -> Leave:
        """Note a call, and `how`: with which operation and root. Return how to note its end.

        A message has two `ends`, and is numbered among those that are alike.
        """
        about = "".join(f"{t.dtype} {tuple(t.shape)}"[6:] for t in tensors[-1:])  # no "torch."
        # On a GPU it is done later than called; NCCL's barrier runs there too, without a tensor.
        barrier = name == "barrier" and "nccl" in str(dist.get_backend_config(group))
        on_gpu = barrier or any(tensor.is_cuda for tensor in tensors)
        line: dict[str, Any] = {"name": name, "tensor": about, "how": how, "time": time.time()}
        key = f"{group.group_name} {name} {how}" if ends else group.group_name
        with self._lock:
            if key not in self._numbers:
                if ends and len(self._numbers) > TAGS:  # one for each message, it may be
                    return lambda state: None
                members = json.dumps([key, ends or dist.get_process_group_ranks(group)])
                with self._groups.open("a") as file:
                    file.write(members + "\n")
            self._numbers[key] += 1
            self._calls = call = self._calls + 1
            line |= {"group": key, "number": self._numbers[key], "order": call}
            self._write(1 + call % KEPT, "entered", line)

        def leave(state: str) -> None:
            if call > self._calls - KEPT:  # or its line is another call's by now
                self._state(1 + call % KEPT, "queued" if on_gpu and state == "left" else state)

        return leave

    def message(
        self, name: str, group: ProcessGroup, tensors: Sequence[torch.Tensor], peer: int, tag: int
    ) -> Leave:
        """Note a send or recv, which is one call of two ranks: a message from one to the other."""
        ends = [self.rank, dist.get_global_rank(group, peer)]
        if name == "recv":
            ends.reverse()
        return self.enter(MESSAGE.format(*ends), group, tensors, f"tag {tag}" * (tag != 0), ends)

    def _write(self, place: int, state: str, line: dict[str, Any]) -> None:
        self._state(place, "")
        start = place * LINE
        self._memory[start + STATE : start + LINE] = _line(state, line)[STATE:]
        self._state(place, state)

    def _state(self, place: int, state: str) -> None:
        self._memory[place * LINE : place * LINE + STATE] = f"{state:<{STATE}}".encode()


def _line(state: str, line: dict[str, Any]) -> bytes:
    return f"{state:<{STATE}}{json.dumps(line):<{LINE - STATE - 1}}\n".encode()


_current: Recorder | None = None
_inside = threading.local()  # a collective of minidist, in this thread


def entered(
    name: str, group: ProcessGroup, tensors: Sequence[torch.Tensor], facts: Mapping[str, str]
) -> AbstractContextManager[None]:
    """Note a call of minidist's, if this rank records. It runs inside the `with` block."""
    if _current is None:
        return nullcontext()
    how = [facts[each].replace("rank", "root") for each in ("op", "the root") if each in facts]
    return _running(_current.enter(f"minidist.{name}", group, tensors[:1], ", ".join(how)))


@contextmanager
def _running(leave: Leave) -> Iterator[None]:
    _inside.now = True  # what it calls of torch.distributed itself is left out
    try:
        yield
        leave("left")
    except BaseException:
        leave("failed")
        raise
    finally:
        _inside.now = False


def _done(leave: Leave, future: torch.futures.Future[Any]) -> None:
    try:
        future.value()
        leave("left")
    except Exception:  # whatever the backend raised
        leave("failed")


def _how(arguments: Mapping[str, Any], group: ProcessGroup) -> str:
    """The operation and the root, by its global rank, of a call of torch's."""
    op, root = arguments.get("reduce_op"), arguments.get("root_rank")
    how = [] if op is None else [dist.ReduceOp.RedOpType(op.op()).name]
    return ", ".join(how if root is None else [*how, f"root {dist.get_global_rank(group, root)}"])


def _who_am_i() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # as torchrun sets them
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise ValueError("diagnose.record: which rank is this? Call it after init_process_group")


@contextmanager
def _torch_too(recorder: Recorder) -> Iterator[None]:
    """Record torch.distributed's collectives inside the block: [Note: torch's own calls]."""
    below = torch._C._dispatch_keyset_full_after(BACKEND_SELECT)

    def kernel(operator: Any, name: str) -> Callable[..., Any]:
        arguments = [each.name for each in operator._schema.arguments]

        def noted(keys: Any, *args: Any) -> Any:
            if getattr(_inside, "now", False):
                return operator.redispatch(keys & below, *args)
            group = next(ProcessGroup.unbox(a) for a in args if isinstance(a, torch.ScriptObject))
            tensors = [each for each in tree_leaves(args[:2]) if isinstance(each, torch.Tensor)]
            if name in ("send", "recv"):
                leave = recorder.message(name, group, tensors, peer=args[2], tag=args[3])
            else:
                how = _how(dict(zip(arguments, args, strict=False)), group)
                leave = recorder.enter(name, group, [] if name == "barrier" else tensors, how)
            result = operator.redispatch(keys & below, *args)
            boxed = result[-1] if isinstance(result, tuple) else result
            try:
                work = dist.Work.unbox(boxed)
                if work is None:  # NCCL's answer to a call that is not asynchronous
                    leave("queued")
                else:
                    work.get_future().add_done_callback(partial(_done, leave))
            except (TypeError, RuntimeError):  # Gloo's reduce_scatter and messages have none
                leave("queued")
            return result

        return noted

    with torch.library._scoped_library("c10d", "IMPL") as library:
        for operator in OPERATORS.split():
            name = operator.strip("_")
            for short, known in SPELLING:
                name = name.replace(short, known)
            overload = getattr(torch.ops.c10d, operator).default
            library.impl(operator, kernel(overload, name), "BackendSelect", with_keyset=True)
        yield
