"""Pickles, in which functions and values travel between processes: cloudpickle's.

Where that is not installed, as on a GPU machine with torch and numpy alone, plain pickle takes its
place. It takes what an importable module defines by name; not a lambda, or what a script or a
notebook's cell defines.
"""

import importlib
import io
import sys
from types import ModuleType
from typing import Any

import torch

try:
    from cloudpickle import Pickler, loads
except ModuleNotFoundError:
    from pickle import Pickler, loads

__all__ = ["dumps", "loads"]


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
        return base(value) if base else NotImplemented


def dumps(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
