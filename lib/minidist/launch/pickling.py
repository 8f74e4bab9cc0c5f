"""Pickles, in which functions and values travel between processes: cloudpickle's.

Where that is not installed, as on a GPU machine with torch and numpy alone, plain pickle takes its
place. It takes what an importable module defines by name; not a lambda, or what a script or a
notebook's cell defines.

[Note: classes of __main__] What a script or a cell defines travels by value, and says that it is of
`__main__`. So it is put there in a rank too, or nothing but cloudpickle could pickle it there: no
DataLoader's worker, process pool, all_gather_object or torch.save.
"""

import importlib
import io
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

try:
    from cloudpickle import Pickler, loads
except ModuleNotFoundError:
    from pickle import Pickler, loads

__all__ = ["dumps", "loads"]

main_lock = threading.Lock()  # held while `__main__` is looked up, or hidden: see process.py
_stand_in: ModuleType | None = None  # in a process of ours


def stand_in_for_main(file: str | None) -> None:
    """Give this process a `__main__` of its own, to be filled with what it loads of `file`'s."""
    global _stand_in
    sys.modules["__main__"] = _stand_in = ModuleType("__main__")
    if file:
        _stand_in.__file__ = file  # a process that it spawns looks there, as under torchrun


class _Pickler(Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """Send a GPU's tensor as its copy on the CPU, and a module of its own class by its name.

        Whoever loads a tensor on a GPU wakes that GPU. And cloudpickle only knows plain modules, so
        a function that names torch.backends failed.
        """
        if type(value) is torch.Tensor and value.is_cuda:
            copy = value.detach().cpu().requires_grad_(value.requires_grad)
            return copy.__reduce_ex__(2)  # type: ignore[no-untyped-call]
        name = value.__name__ if isinstance(value, ModuleType) else ""
        if name and type(value) is not ModuleType and sys.modules.get(name) is value:
            return importlib.import_module, (name,)
        base = getattr(super(), "reducer_override", None)
        found = base(value) if base else NotImplemented
        name = getattr(value, "__qualname__", "")
        if isinstance(found, tuple) and vars(sys.modules["__main__"]).get(name) is value:
            make, args, *state = found
            return _made_in_main, (name, make, args), *state
        return found


def _made_in_main(name: str, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Make a class or function, and let `__main__` know it unless it is the launcher's own."""
    made = make(*args)
    if _stand_in:
        setattr(_stand_in, name, made)
    return made


def dumps(value: object) -> bytes:
    file = io.BytesIO()
    with main_lock:
        _Pickler(file).dump(value)
    return file.getvalue()
