"""Progress of a long computation, for whoever waits for it."""

import os
import time
from collections.abc import Collection, Iterator
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")

PATIENCE = 3.0  # seconds between two lines


def progress(items: Collection[T], what: str) -> Iterator[T]:
    """Yield the items, and every few seconds print how many are done; where ranks are, on rank 0.

    Nothing is printed where TQDM_DISABLE is set, as it is when the book is built.
    """
    silent = "TQDM_DISABLE" in os.environ or (dist.is_initialized() and dist.get_rank() > 0)
    said = time.monotonic()
    for done, item in enumerate(items):
        if not silent and time.monotonic() - said > PATIENCE:
            said = time.monotonic()
            print(f"{what}: {done} of {len(items)} done", flush=True)
        yield item
