"""Times and memory of minidist beside torch's own, and checks of it on GPUs.

    python -m benchmarks              every case on the CPU, each into results/CASE.json
    python -m benchmarks ddp fsdp     some of them
    python -m benchmarks.gpu          checks and cases on the GPUs of this host, in eight minutes
    python -m benchmarks.gpu grid     a section that is asked for by name

`cases/` has what is measured, `checks/` what a GPU can get wrong, `harness/` what they share.
Nothing need be installed but torch and numpy.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "lib"

if find_spec("minidist") is None:
    sys.path.insert(0, str(LIB))
    # The server that ranks are forked from imports the library before it receives our path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LIB), os.getenv("PYTHONPATH")]))
