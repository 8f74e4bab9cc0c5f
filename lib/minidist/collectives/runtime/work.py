"""Asynchronous calls: a group's collectives run in the order of the calls, mostly in its thread.

Order is what makes collectives match up between ranks, so a synchronous call also waits its turn
behind asynchronous ones of the same group. Threads of the caller take turns, too.

[Note: streams] On a GPU a collective over NCCL only queues kernels, and what is queued on one
stream runs one after another: communication on the caller's stream would hold up the caller's
kernels. So a group's asynchronous collectives have a stream of their own. There they run after what
was queued on the caller's stream before the call, since that made the tensor; and what is queued
after `wait()` runs after them. In between both streams run at the same time.

[Note: no thread for NCCL] What only queues kernels is done at once, in the caller's thread. In
another one it would meet the caller's own collectives: torch's `batch_isend_irecv` marks the group
while it collects messages, and an `all_reduce` that finds the mark, such as SyncBatchNorm's, is
taken for one of them and never sent. And NCCL wants the calls of all groups in one order on all
ranks; two threads have none.

[Note: held until done] Memory that is freed goes back to the stream where it was allocated, which
knows nothing of ours: it would be used again while a collective still reads it. So a collective's
tensors are held until `wait()`, or for a `Work` that nobody waits for, until the GPU has done it
and the group's next call comes.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack
from functools import lru_cache
from threading import Lock, RLock
from weakref import WeakKeyDictionary, ref

import torch

# Private; in torch 2.11 as in 2.13, and FSDP2 uses it. What is public loads the compiler at once.
from torch._compile import _disable_dynamo as eager
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import stream_ordered
from minidist.profiler.event import Interval, StreamEvent, interval

Body = Callable[[], None]


class _Task:
    """A body that waits or runs; apart from its `Work`, whose failure holds on to its group."""

    def __init__(self, body: Body, device: torch.device) -> None:
        self.body: Body | None = body  # with all that it uses
        self.called = StreamEvent(device)
        self.started: StreamEvent | None = None
        self.ended: StreamEvent | None = None

    def done(self) -> bool:
        return self.ended is not None and self.ended.query()


class Work:
    """A collective on its way."""

    def __init__(self, future: Future[None], task: _Task) -> None:
        self._future, self._task = future, task
        self.outputs: list[ref[torch.Tensor]] = []  # weak: they belong to the caller

    @eager
    def wait(self) -> bool:
        """Return True when the result is in place, or raise what the collective raised.

        On a GPU that is in the order of the device's current stream: see [Note: streams].
        """
        try:
            self._future.result()
        finally:
            if self._task.ended:
                self._task.ended.block_current_stream()
            self._task.body = None
        return True

    @eager
    def is_completed(self) -> bool:
        return self._future.done() and self._task.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that are written, done when the collective is; or its error.

        Raises NotImplementedError for tensors on a GPU.
        """
        outputs = [tensor for each in self.outputs if (tensor := each()) is not None]
        if any(tensor.is_cuda for tensor in outputs):
            raise NotImplementedError("get_future is for tensors on the CPU; on a GPU call wait()")
        done = torch.futures.Future[list[torch.Tensor]]()

        def end(future: Future[None]) -> None:
            error = future.exception()
            if isinstance(error, Exception):
                done.set_exception(error)  # type: ignore[arg-type]
            else:
                done.set_result(outputs)

        self._future.add_done_callback(end)
        return done

    @property
    def span(self) -> Interval | None:
        """Its start and end, in seconds of `time.monotonic()`; None before it has ended.

        It starts when its turn comes. Waiting for the other ranks to come counts.
        """
        return interval(self._task.started, self._task.ended) if self.is_completed() else None


class _Queue:
    def __init__(self) -> None:
        self.turn = RLock()  # held while a body runs, whichever thread runs it
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minidist")
        self.last: ref[Future[None]] | None = None  # weak: a failure holds on to its group
        self.ended: StreamEvent | None = None  # the last one on a GPU
        self.held: deque[_Task] = deque()  # [Note: held until done]; empty on the CPU
        self.stream = lru_cache(torch.cuda.Stream)  # one per device: [Note: streams]

    def append(self, body: Body, device: torch.device, at_once: bool) -> Work:
        task = _Task(body, device)
        while self.held and (not self.held[0].body or self.held[0].done()):
            self.held.popleft()
        if device.type == "cuda":
            self.held.append(task)
        if at_once:
            future = Future[None]()
            try:
                self._fly(task, device)
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)
        else:
            future = self.thread.submit(self._fly, task, device)
        self.last = ref(future)
        return Work(future, task)

    def running(self) -> Future[None] | None:
        """The last call's future while it, and with it some call, is not done."""
        last = self.last() if self.last else None
        return None if last is None or last.done() else last

    def _fly(self, task: _Task, device: torch.device) -> None:
        with self.turn, ExitStack() as on_gpu:
            if device.type == "cuda":
                on_gpu.enter_context(torch.cuda.device(device))  # a new thread's is GPU 0
                on_gpu.enter_context(torch.cuda.stream(self.stream(device)))
            task.called.block_current_stream()
            task.started = StreamEvent(device)
            try:
                assert task.body is not None
                task.body()
            finally:
                task.ended = StreamEvent(device)
                if device.type == "cuda":  # what the host has done, no stream has to wait for
                    self.ended = task.ended


_queues: WeakKeyDictionary[ProcessGroup, _Queue] = WeakKeyDictionary()
_making = Lock()  # two threads must not make two queues for one group


def in_order(group: ProcessGroup, body: Body, device: torch.device, async_op: bool) -> Work | None:
    """Call `body` after all earlier ones of the group: now, or in the group's thread."""
    with _making:
        queue = _queues.get(group) or _queues.setdefault(group, _Queue())
    at_once = stream_ordered(device, group)  # [Note: no thread for NCCL]
    running = queue.running()
    if at_once and running:  # a call on the CPU
        wait_for([running])
    if not async_op and (at_once or not running):
        with queue.turn:
            if queue.ended and device.type == "cuda":
                queue.ended.block_current_stream()
            body()
        return None
    work = queue.append(body, device, at_once)
    if async_op:
        return work
    work.wait()
    return None
