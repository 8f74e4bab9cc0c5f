"""Where to find minidist when it is not installed: in this checkout."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

LIB = Path(__file__).resolve().parents[2] / "lib"


def find() -> None:
    """Make minidist importable, here and in the processes that it starts."""
    if find_spec("minidist") is None:
        sys.path.insert(0, str(LIB))
        # The server that ranks are forked from imports the library before it hears of our path.
        paths = [str(LIB), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
