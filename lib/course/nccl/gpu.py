"""A GPU that is not there: tensors "on" it are CPU tensors that say that they are on it.

Whatever is computed from them is there too. Streams are not told apart: kernels run at once. But a
tensor that a call of NCCL writes is not there before the call has run: the first kernel that needs
it waits for that, as one on the stream that was made to `wait()` would.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from course.nccl.line import OURS, Ticket


class Unordered(Exception):
    """A kernel uses what a call on its way writes, and nobody has waited for the call."""


@dataclass
class _Memory:
    """A storage on a GPU, and the calls that will write to it: to which bytes."""

    storage: StorageWeakRef
    gpu: int
    calls: list[tuple[Ticket, range]] = field(default_factory=list)


_memories: dict[int, _Memory] = {}  # by the storage's address


def _memory(tensor: torch.Tensor) -> _Memory | None:
    storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
    found = _memories.get(storage._cdata)
    return None if found is None or found.storage.expired() else found  # type: ignore[no-untyped-call]


def _bytes(tensor: torch.Tensor) -> range:
    """From its first element to its last."""
    start, size = tensor.data_ptr(), tensor.element_size()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in steps)
    return range(start, start + (last + 1) * size if tensor.numel() else start)


def gpu_of(tensor: torch.Tensor) -> int | None:
    """The number of the GPU where it is; None for a tensor on the CPU."""
    memory = _memory(tensor)
    return memory.gpu if memory else None


def put(tensor: torch.Tensor, gpu: int | None) -> torch.Tensor:
    """Let the tensor's memory be that of a GPU, or of the CPU for None."""
    storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
    _memories.pop(storage._cdata, None)
    if gpu is not None:
        _memories[storage._cdata] = _Memory(StorageWeakRef(storage), gpu)  # type: ignore[no-untyped-call]
    if len(_memories) > 10_000:
        for key in [key for key, each in _memories.items() if each.storage.expired()]:  # type: ignore[no-untyped-call]
            del _memories[key]
    return tensor


def will_write(ticket: Ticket, tensors: Iterable[torch.Tensor]) -> None:
    """Let kernels that need these tensors wait for the call."""
    for tensor in tensors:
        if memory := _memory(tensor):
            memory.calls.append((ticket, _bytes(tensor)))


def synchronize(*_: Any, **__: Any) -> None:
    """Wait until the GPU has done everything."""
    for memory in list(_memories.values()):
        for ticket, _where in memory.calls:
            ticket.wait()
        memory.calls.clear()


def need(tensor: torch.Tensor) -> None:
    """Wait for the calls that write to it; raises Unordered if nobody has waited for one."""
    if memory := _memory(tensor):
        _await(memory, _bytes(tensor))


def _await(memory: _Memory, used: range) -> None:
    for call in memory.calls[:]:
        ticket, written = call
        if used.start < written.stop and written.start < used.stop:
            if not ticket.ordered:
                raise Unordered(f"a kernel uses what {ticket.name} writes: wait() for it first")
            ticket.wait()
            memory.calls.remove(call)


def _resize(storage: torch.UntypedStorage, size: int) -> Any:
    """Free memory after the calls that write to it, as the stream would."""
    if memory := _memories.get(storage._cdata):
        _await(memory, range(sys.maxsize))
    return super(torch.UntypedStorage, storage).resize_(size)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each kernel waits for what it needs; what it makes is where its inputs are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **kwargs)
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # and comes again with what it is made of
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        there = {number: each for each in given if (number := gpu_of(each)) is not None}
        if len(there) > 1:
            raise RuntimeError(f"{func}: tensors on several GPUs: {sorted(there)}")
        if there and not func.is_view and func.namespace != "_c10d_functional":
            for tensor in given:
                need(tensor)
        result = func(*args, **kwargs)
        if there:
            made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
            for each in made:
                if gpu_of(each) is None and not _shares(each, given):
                    put(each, *there)
        return result


def _shares(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    mine = tensor.untyped_storage()._cdata
    return any(each.untyped_storage()._cdata == mine for each in others)


def _names_device(each: object) -> bool:
    return isinstance(each, torch.device) or (
        isinstance(each, str) and each.split(":")[0] in ("cpu", "cuda", "meta")
    )


_T: Any = torch.Tensor
_ASKED: dict[Any, Callable[[torch.Tensor], Any]] = {
    _T.device.__get__: lambda tensor: torch.device(f"cuda:{gpu_of(tensor)}"),
    _T.is_cuda.__get__: lambda _: True,
    _T.is_cpu.__get__: lambda _: False,
    _T.get_device: gpu_of,
}


class _Devices(TorchFunctionMode):
    """Tensors say where they are; `device="cuda"` puts them there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if func in (torch.device, torch._C._nn._parse_to):  # which name devices, and make nothing
            return func(*args, **kwargs)
        if func in (_T.pin_memory, _T.is_pinned):
            return first if func is _T.pin_memory else False
        if first is not None and gpu_of(first) is not None:
            if func in _ASKED:
                return _ASKED[func](first)
            if func is _T.tolist:  # runs no kernel
                need(first)
            if func is _T.numpy:
                raise TypeError("can't convert a tensor on a GPU to numpy: use .cpu() first")
        if func is _T.cuda:
            func, args = _T.to, (first, "cuda")
        kwargs.pop("pin_memory", None)
        given = (*args, *kwargs.values())
        moved = func in (_T.to, _T.cpu)
        if moved and (like := [e for e in given[1:] if isinstance(e, torch.Tensor)]):
            given = (first, torch.device("cpu") if gpu_of(like[0]) is None else like[0].device)
        named = [torch.device(each) for each in given[1 if moved else 0 :] if _names_device(each)]
        named += [torch.device("cpu")] * (func is _T.cpu)
        if not named or (named[0].type != "cuda" and not moved) or named[0].type == "meta":
            return func(*args, **kwargs)
        args, kwargs = tree_map(lambda e: "cpu" if _names_device(e) else e, (args, kwargs))
        return self._placed(func(*args, **kwargs), named[0], first if moved else None)

    def _placed(self, result: torch.Tensor, device: torch.device, moved: Any) -> Any:
        """Put a new tensor on a device, or a copy of one that moves there."""
        if not isinstance(result, torch.Tensor) or result.is_meta:
            return result
        gpu = None
        if device.type == "cuda":
            gpu = torch.cuda.current_device() if device.index is None else device.index
        if moved is not None:
            if gpu_of(moved) == gpu:
                return result
            if _shares(result, [moved]):
                result = result.clone()
        return put(result, gpu)


class _Stream:
    """One of the GPU's; kernels run at once on each."""

    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device = device or torch.device("cuda", torch.cuda.current_device())

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        """As there is nothing to wait for: kernels have run."""

    wait_stream = wait_event

    def record_event(self, event: Any = None) -> Any:
        """An event of now."""
        return event or _Event()

    synchronize = staticmethod(synchronize)

    def query(self) -> bool:
        """True, as if all had run."""
        return True


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    wait = record

    def query(self) -> bool:
        return True

    synchronize = staticmethod(synchronize)

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def _cuda(gpus: int) -> dict[str, Any]:
    """Stand-ins for torch.cuda, by name."""
    here = threading.local()
    streams = [_Stream(torch.device("cuda", gpu)) for gpu in range(gpus)]

    def set_device(device: Any) -> None:
        number = torch.device(device).index if not isinstance(device, int) else device
        if (number or 0) >= gpus:
            raise RuntimeError("CUDA error: invalid device ordinal")
        here.device = number or 0

    def nothing(*_: Any, **__: Any) -> Any:
        return nullcontext()

    def zero(*_: Any, **__: Any) -> int:
        return 0

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpus,
        "current_device": lambda: getattr(here, "device", 0),
        "set_device": set_device,
        "synchronize": synchronize,
        "Stream": _Stream,
        "Event": _Event,
        "stream": nothing,
        "is_current_stream_capturing": lambda: False,
        "device": nothing,
        "current_stream": lambda *_: streams[torch.cuda.current_device()],
        "default_stream": lambda *_: streams[torch.cuda.current_device()],
        "max_memory_allocated": zero,
        "memory_allocated": zero,
        "reset_peak_memory_stats": zero,
        "memory_stats": lambda *_: {},
        "is_bf16_supported": lambda *_, **__: True,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }


@contextmanager
def gpus(count: int) -> Iterator[None]:
    """Let this process see `count` GPUs, in every thread."""
    autograd: Any = torch.autograd
    run, run_backward = threading.Thread.run, autograd._engine_run_backward

    def with_modes(thread: threading.Thread) -> None:
        if thread.name == OURS:
            run(thread)
        else:
            with _Devices(), _Kernels():  # type: ignore[no-untyped-call]
                run(thread)

    def backward(*args: Any, **kwargs: Any) -> Any:
        with _Devices():  # which torch has left before it calls this
            return run_backward(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.UntypedStorage, "resize_", _resize))
        stack.enter_context(patch.object(autograd, "_engine_run_backward", backward))
        for name, value in _cuda(count).items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch.cuda.nccl, "version", lambda: (2, 0, 0)))
        # A loader would ask a torch that was built for GPUs to pin memory.
        stack.enter_context(patch.object(torch.accelerator, "is_available", lambda: False))
        stack.enter_context(patch.object(threading.Thread, "run", with_modes))
        for mode in (_Devices(), _Kernels()):  # type: ignore[no-untyped-call]
            stack.enter_context(mode)
        yield
        synchronize()
