"""For pytest's -p: settings of nbmake's kernels that no option of its own reaches.

They listen on sockets in files: on TCP, Jupyter picks free ports before it starts a kernel, and
until the kernel binds them a rank of another lab may have taken one. And they are given time.
"""

import os
from functools import partial

import pytest
from nbmake import nb_run
from traitlets.config import Config

SLOWEST = {"startup_timeout": 300, "iopub_timeout": 60}  # seconds, on a machine that is busy


def pytest_configure(config: pytest.Config) -> None:
    sockets = str(config.rootpath / f"kernel-{os.getpid()}")  # pytest's workers are processes
    settings = Config(KernelManager={"transport": "ipc", "ip": sockets}, NotebookClient=SLOWEST)
    nb_run.NotebookClient = partial(nb_run.NotebookClient, config=settings)  # type: ignore[misc]
