"""`torchrun --nproc-per-node 4 -m course.capstone MODULE LOG`: a run of the capstone.

MODULE has a class `Run` and a number `STEPS`, such as `mine.capstone`; LOG is where rank 0 writes
what all ranks have done, a line of JSON for each step.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from course.capstone.run import write

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    write(sys.argv[1], Path(sys.argv[2]))
    dist.destroy_process_group()
