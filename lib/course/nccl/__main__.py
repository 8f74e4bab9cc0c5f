"""Run a script by NCCL's rules: torchrun --nproc-per-node 2 -m course.nccl SCRIPT ..."""

import os
import runpy
import sys
from pathlib import Path

from course.nccl import rules

sys.argv.pop(0)
sys.path[0] = str(Path(sys.argv[0]).parent)
with rules(int(os.environ["LOCAL_WORLD_SIZE"])):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:  # else it is done, and others may still talk to each other
            raise
