"""Imported by the fork server: loads what processes need, then prepares for forking and the end."""

import atexit
import gc
import os
from contextlib import suppress
from multiprocessing import forkserver
from typing import Any

# torch would import its compiler with a rank's first optimizer, which takes a second.
import torch._dynamo  # noqa: F401

import minidist.launch.rank  # noqa: F401

# Otherwise each collection in each rank walks through all of torch's modules, which takes a good
# part of a second and copies the memory that forked processes share: see Python on `gc.freeze`.
gc.collect()
gc.freeze()


@atexit.register
def _remove_socket() -> None:
    server: Any = forkserver._forkserver  # not public; should it go, an empty folder stays, no more
    with suppress(Exception):
        os.unlink(server._forkserver_address)
        os.rmdir(os.path.dirname(server._forkserver_address))  # only if it is empty
