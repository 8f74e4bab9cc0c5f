"""For pytest's -p: nbmake's kernels are forked from a process that has imported what they need.

Importing torch and matplotlib keeps a core busy for some three seconds, and there are more than
thirty documents. A fork has them at once, and is otherwise a kernel like any other. The ranks that
its cells launch are forked from the same process, where a reader's kernel starts one of its own.

The kernels listen on sockets in files: on TCP, Jupyter picks free ports before it starts a kernel,
and until the kernel binds them a rank of another lab may have taken one. And they are given time.
"""

import os
import signal
import sys
from functools import partial
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any

import pytest
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from nbmake import nb_run
from traitlets.config import Config

IMPORTED = [
    "ipykernel.kernelapp",
    "matplotlib.figure",  # not pyplot, which shows figures only if born in a kernel
    "matplotlib.backends.backend_svg",
    "minidist.launch.preload",  # what ranks need; the last, since it makes ready to fork
]
INLINE = "module://matplotlib_inline.backend_inline"
SLOWEST = {"startup_timeout": 300, "iopub_timeout": 60}  # seconds, on a machine that is busy


def be_kernel(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run a kernel until it is shut down, or until the process that it was forked from ends."""
    import matplotlib
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    matplotlib.use(INLINE)  # a kernel says so in the environment, before matplotlib is imported
    use_the_same_server()
    IPKernelApp.launch_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def use_the_same_server() -> None:
    """Fork what this kernel launches from where it came from itself; start no server for that."""
    if sys.version_info < (3, 14):  # later servers want a key, which a kernel does not have
        server: Any = forkserver
        server.ensure_running = server._forkserver.ensure_running = resource_tracker.ensure_running


class Kernel(ForkServerProcess):
    """A forked kernel, with what a provisioner uses of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.exitcode

    def wait(self) -> int | None:
        """Its exit status, when it has ended."""
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        """Send it to the kernel alone."""
        os.kill(self.pid or 0, number)


class Provisioner(LocalProvisioner):
    """Starts a kernel by a fork."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start it; `cmd` is what would start a Python: its options, a module, and `-f FILE`."""
        arguments = cmd[cmd.index("-f") :]
        self.process = Kernel(target=be_kernel, args=(arguments, kwargs["cwd"], kwargs["env"]))
        self.process.start()
        self.pid = self.process.pid
        return self.connection_info


class KernelManager(AsyncKernelManager):
    """Jupyter's, with kernels that are forked."""

    async def _async_pre_start_kernel(self, **kwargs: Any) -> Any:
        self.provisioner = Provisioner(kernel_id="", kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**kwargs)


def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ["MINIDIST_PAGE"] = item.path.stem  # a page's questions are noted under its name


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TQDM_DISABLE"] = "1"  # the book shows what a cell leaves, not how far it was
    get_context("forkserver").set_forkserver_preload(IMPORTED)
    sockets = str(config.rootpath / f"kernel-{os.getpid()}")  # pytest's workers are processes
    kernels = {"KernelManager": {"transport": "ipc", "ip": sockets}}
    client = SLOWEST | {"kernel_manager_class": KernelManager}
    settings = Config(**kernels, NotebookClient=client)
    nb_run.NotebookClient = partial(nb_run.NotebookClient, config=settings)  # type: ignore[misc]
