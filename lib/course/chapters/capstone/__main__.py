"""`torchrun --nproc-per-node 4 -m course.chapters.capstone MODULE [LOG]`: a run of the capstone.

MODULE has a class `Run` and a dict `FORECAST`, such as `mine.capstone`; LOG is where rank 0 writes
what all ranks have done, a line of JSON for each step. Without it that is `capstone.jsonl` beside
the module's file.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from course.ask.verdict import Wrong
from course.chapters.capstone.run import write

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        write(sys.argv[1], *map(Path, sys.argv[2:]))
    except Wrong as error:  # ends with status 0, or torchrun would print much more
        if dist.get_rank() == 0:
            print(error)
    dist.destroy_process_group()
