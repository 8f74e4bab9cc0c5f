"""How functions and values travel between processes: by cloudpickle.

Where that is not installed, as on a GPU machine with torch and numpy alone, plain pickle takes its
place. It takes what an importable module defines by name; not a lambda, or what a script or a
notebook's cell defines.
"""

import importlib
import io
import sys
from types import ModuleType
from typing import Any

try:
    from cloudpickle import Pickler, loads
except ModuleNotFoundError:
    from pickle import Pickler, loads

__all__ = ["dumps", "loads"]


class _Pickler(Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """Send a module of a class of its own by its name, as plain modules are.

        cloudpickle only knows the plain class; so a function that names torch.backends failed.
        """
        name = value.__name__ if isinstance(value, ModuleType) else ""
        if name and type(value) is not ModuleType and sys.modules.get(name) is value:
            return importlib.import_module, (name,)
        base = getattr(super(), "reducer_override", None)
        return base(value) if base else NotImplemented


def dumps(value: object) -> bytes:
    """The value as bytes, for `loads` in another process."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
