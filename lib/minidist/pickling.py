"""How functions and values travel between processes: by cloudpickle.

Where that is not installed, as on a GPU machine with torch and numpy alone, plain pickle takes its
place. It takes what an importable module defines by name; not a lambda, or what a script or a
notebook's cell defines.
"""

from __future__ import annotations

try:
    from cloudpickle import dumps, loads
except ModuleNotFoundError:
    from pickle import dumps, loads

__all__ = ["dumps", "loads"]
