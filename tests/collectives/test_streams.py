"""Asynchronous calls on a GPU's streams, on a fake GPU: what runs when, and what waits for what."""

import gc
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.collectives.runtime import work as runtime
from minidist.collectives.runtime.work import Work, in_order
from minidist.profiler import event

CUDA = torch.device("cuda:1")


class Gpu:
    """Streams are queues that run only when told to; kernels are words in `done`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.clock = 0.0  # seconds
        self.usual = Stream(CUDA)
        self._here = threading.local()
        self._here.device = CUDA  # in the main thread; a new one begins at the first GPU

    @contextmanager
    def on_device(self, device: torch.device) -> Iterator[None]:
        before, self._here.device = getattr(self._here, "device", None), device
        yield
        self._here.device = before

    def current(self, device: torch.device) -> "Stream":
        assert device == CUDA
        return getattr(self._here, "stream", self.usual)

    @contextmanager
    def entered(self, stream: "Stream") -> Iterator[None]:
        assert self._here.device == CUDA, "torch asks the thread's own GPU for its stream"
        before, self._here.stream = self.current(CUDA), stream
        yield
        self._here.stream = before

    def kernel(self, name: str) -> Callable[[], None]:
        return lambda: self.current(CUDA).queue.append(("kernel", name))

    def run(self, stream: "Stream") -> None:
        """As far as it comes without the others."""
        while stream.queue:
            kind, what = stream.queue[0]
            if kind == "wait" and not what.query():
                return
            stream.queue.popleft()
            if kind == "kernel":
                self.clock += 1
                self.done.append(what)
            elif kind == "record":
                what.at = self.clock


class Stream:
    made: "list[Stream]" = []  # noqa: RUF012

    def __init__(self, device: torch.device) -> None:
        self.queue: deque[tuple[str, Any]] = deque()
        self.made.append(self)

    def wait_event(self, event: "Event") -> None:
        self.queue.append(("wait", event))


class Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at: float | None = None

    def record(self, stream: Stream) -> None:
        stream.queue.append(("record", self))

    def query(self) -> bool:
        return self.at is not None

    def synchronize(self) -> None:  # only of anchors
        self.at = 0.0

    def elapsed_time(self, end: "Event") -> float:
        assert self.at is not None
        assert end.at is not None
        return 1e3 * (end.at - self.at)


class LiveStream(ThreadPoolExecutor):
    """Runs what is queued as it comes, beside the other streams, and sometimes late."""

    dice = random.Random()

    def __init__(self, device: torch.device) -> None:
        super().__init__(1)

    def kernel(self, work: Callable[[], object]) -> None:
        self.submit(time.sleep, self.dice.random() / 500)
        self.submit(work)

    def wait_event(self, event: "LiveEvent") -> None:
        self.submit(event.reached.wait)


class LiveEvent:
    def __init__(self, enable_timing: bool) -> None:
        self.reached = threading.Event()

    def record(self, stream: LiveStream) -> None:
        stream.submit(self.reached.set)

    def query(self) -> bool:
        return self.reached.is_set()


class Group:
    """In the place of a process group."""


@pytest.fixture(params=["nccl", "gloo"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Over NCCL calls are queued at once; over Gloo, through host memory, by the group's thread."""
    made = Gpu()
    over_nccl = lambda device, group: device == CUDA and request.param == "nccl"  # noqa: E731
    monkeypatch.setattr(runtime, "stream_ordered", over_nccl)
    monkeypatch.setattr(torch.cuda, "device", made.on_device)
    monkeypatch.setattr(Stream, "made", [])
    monkeypatch.setattr(event, "_anchors", {})
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", made.entered)
    monkeypatch.setattr(torch.cuda, "current_stream", made.current)
    return made


def begun(group: Any, body: Callable[[], None]) -> Work:
    work = in_order(group, body, CUDA, async_op=True)
    assert work is not None
    return work


def test_compute_goes_on_beside_a_collective_and_what_needs_it_waits(gpu: Gpu) -> None:
    group = Group()
    gpu.kernel("gradient")()
    work = begun(group, gpu.kernel("all-reduce"))
    gpu.kernel("backward")()
    before = time.monotonic()
    assert work.wait(), "and nothing has run on the GPU: the host has not waited for it"
    gpu.kernel("optimizer")()
    assert (gpu.done, work.is_completed(), work.span) == ([], False, None)
    (side,) = Stream.made
    gpu.run(side)
    assert gpu.done == [], "the gradient is not there yet"
    gpu.run(gpu.usual)
    assert gpu.done == ["gradient", "backward"], "while the collective has not even begun"
    gpu.run(side)
    gpu.run(gpu.usual)
    assert gpu.done[2:] == ["all-reduce", "optimizer"]
    assert work.is_completed()
    assert work.span is not None
    start, end = work.span
    assert end - start == pytest.approx(1)
    assert before <= start - 2 <= time.monotonic(), "two kernels after the anchor"


def test_a_group_has_one_stream_and_each_its_own(gpu: Gpu) -> None:
    groups = [Group(), Group()]
    works = [begun(group, gpu.kernel(f"{i}")) for i in range(3) for group in groups]
    for work in works:
        work.wait()
    first, second = Stream.made
    gpu.run(gpu.usual)
    gpu.run(second)
    assert gpu.done == ["0", "1", "2"], "the other group's stream has not moved"
    gpu.run(first)
    assert gpu.done == ["0", "1", "2"] * 2


def test_a_synchronous_call_runs_on_its_own_stream_after_the_asynchronous_ones(gpu: Gpu) -> None:
    group = Group()
    begun(group, gpu.kernel("first")).wait()
    other = Stream(CUDA)
    with gpu.entered(other):
        work = in_order(group, gpu.kernel("second"), CUDA, async_op=False)  # type: ignore[arg-type]
        assert work is None
    gpu.run(other)
    assert gpu.done == []
    gpu.run(gpu.usual)
    gpu.run(Stream.made[0])
    gpu.run(other)
    assert gpu.done == ["first", "second"]


@pytest.mark.parametrize("first", [CUDA, torch.device("cpu")], ids=str)
def test_a_call_that_finds_the_thread_busy_comes_after_what_is_there(
    gpu: Gpu, first: torch.device
) -> None:
    group: Any = Group()
    door = threading.Event()

    opener = threading.Timer(0.1, door.set)
    in_order(group, lambda: None, torch.device("cpu"), async_op=False)
    runtime._queues[group].thread.submit(door.wait, 10)
    kernel = gpu.kernel("first") if first == CUDA else lambda: gpu.done.append("first")
    in_order(group, kernel, first, async_op=True)
    opener.start()
    in_order(group, gpu.kernel("second"), CUDA, async_op=False)
    assert gpu.done == ["first"] * (first != CUDA)
    opener.join()
    gpu.kernel("third")()
    gpu.run(gpu.usual)
    for stream in Stream.made:
        gpu.run(stream)
        gpu.run(gpu.usual)
    assert gpu.done == ["first", "second", "third"]


def test_over_nccl_the_caller_queues_a_collective_itself(gpu: Gpu) -> None:
    """Else its own collectives could come in between; and two groups' in any order."""
    group, other = Group(), Group()
    seen = list[int]()
    for each in (group, other, group):
        begun(each, lambda: seen.append(threading.get_ident())).wait()
    at_once = runtime.stream_ordered(CUDA, None)  # type: ignore[attr-defined]
    assert (set(seen) == {threading.get_ident()}) == at_once
    assert len(set(seen)) == (1 if at_once else 2)


class Memory:
    """In the place of a tensor."""


def use(gpu: Gpu) -> tuple[Callable[[], None], "weakref.ref[Memory]"]:
    """A body that uses memory, which nobody else holds."""
    memory, run = Memory(), gpu.kernel("use")

    def body(memory: Memory = memory) -> None:
        run()

    return body, weakref.ref(memory)


def gone(memory: "weakref.ref[Memory]") -> bool:
    gc.collect()
    return memory() is None


def idle(group: Any) -> None:
    """Let the group's thread come to the end of what it was given."""
    in_order(group, lambda: None, torch.device("cpu"), async_op=True)
    in_order(group, lambda: None, torch.device("cpu"), async_op=False)


def test_what_a_collective_uses_is_held_until_it_is_waited_for_or_done(gpu: Gpu) -> None:
    group = Group()
    body, memory = use(gpu)
    work = begun(group, body)
    del body
    idle(group)
    assert not gone(memory), "its kernels may not even have begun"
    work.wait()
    assert gone(memory), "what is now queued runs after them"
    group = Group()
    body, memory = use(gpu)
    begun(group, body)  # nobody waits for it
    del body
    idle(group)
    begun(group, gpu.kernel("next")).wait()
    assert not gone(memory)
    first, second = Stream.made
    for stream in (gpu.usual, first, gpu.usual, second):
        gpu.run(stream)
    begun(group, gpu.kernel("next")).wait()
    assert gone(memory)


def test_a_failure_is_raised_at_wait_and_lets_go(gpu: Gpu) -> None:
    group = Group()
    body, memory = use(gpu)

    def fails(body: Callable[[], None] = body) -> None:
        body()
        raise ValueError("no")

    work = begun(group, fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work.wait()
    gpu.run(gpu.usual)
    gpu.run(Stream.made[0])
    assert work.is_completed()
    assert gpu.done == ["use"]
    del body, fails, work
    assert gone(memory)


def test_on_the_cpu_there_are_no_streams_and_a_span_is_the_thread_s(gpu: Gpu) -> None:
    before = time.monotonic()
    work = in_order(Group(), lambda: None, torch.device("cpu"), async_op=True)  # type: ignore[arg-type]
    assert work is not None
    work.wait()
    assert work.span is not None
    assert before <= work.span[0] <= work.span[1] <= time.monotonic()
    assert Stream.made == []
    assert not gpu.usual.queue


def hybrid(over_nccl: bool) -> list[float]:
    """Sums of gradients over two groups in turn, by kernels that send messages by Gloo."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    LiveStream.dice.seed(rank)
    halves = [dist.new_group(range(ranks // 2)), dist.new_group(range(ranks // 2, ranks))]
    pairs = [dist.new_group([r, r + ranks // 2]) for r in range(ranks // 2)]
    shard, replicas = halves[rank >= ranks // 2], pairs[rank % (ranks // 2)]
    gradients = [torch.zeros(1) for _ in range(6)]
    gpu, usual = Gpu(), LiveStream(CUDA)
    gpu.usual = usual  # type: ignore[assignment]

    def summed(gradient: torch.Tensor, group: dist.ProcessGroup) -> Work:
        def body() -> None:
            done = threading.Event()
            stream: Any = gpu.current(CUDA)
            stream.kernel(partial(dist.all_reduce, gradient, group=group))
            stream.submit(done.set)
            assert over_nccl or done.wait(30)  # over Gloo the host waits for its messages

        return begun(group, body)

    with pytest.MonkeyPatch.context() as patch:
        named = {"Stream": LiveStream, "Event": LiveEvent, "current_stream": gpu.current}
        for name, fake in (named | {"stream": gpu.entered, "device": gpu.on_device}).items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(runtime, "stream_ordered", lambda device, group: over_nccl)
        for step in range(3):
            flying = deque[tuple[torch.Tensor, Work]]()
            for index, gradient in enumerate(gradients):  # backward, as HSDP's
                value = 100.0 * step + 10 * index + rank
                usual.kernel(partial(gradient.fill_, value))
                flying.append((gradient, summed(gradient, shard)))
                if len(flying) > 1:
                    early, work = flying.popleft()
                    work.wait()
                    summed(early, replicas).wait()
            flying[0][1].wait()
            summed(flying[0][0], replicas).wait()
        end = LiveEvent(True)
        end.record(usual)
        assert end.reached.wait(30)
    return [gradient.item() for gradient in gradients]


@pytest.mark.parametrize("over_nccl", [True, False])
def test_ranks_whose_streams_run_at_their_own_pace_add_the_same_gradients(over_nccl: bool) -> None:
    ranks = 4
    want = [sum(200.0 + 10 * index + rank for rank in range(ranks)) for index in range(6)]
    assert launch(hybrid, ranks, over_nccl) == [want] * ranks
