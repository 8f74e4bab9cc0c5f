"""Kernels forked from one process that has imported what nearly every document imports.

Importing torch and matplotlib keeps a core busy for two seconds, and there are some thirty
documents. A fork has them at once, and is otherwise a kernel like any other. The ranks that its
cells launch are forked from the same process, where a reader's kernel would start one of its own.
"""

import os
import signal
import sys
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.context import ForkServerProcess
from threading import Thread
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

get_context("forkserver").set_forkserver_preload(
    [
        "ipykernel.kernelapp",
        "matplotlib.figure",  # not pyplot, which shows figures only if born in a kernel
        "matplotlib.backends.backend_svg",
        "minidist.launch.preload",  # what ranks need; the last, since it makes ready to fork
    ]
)
INLINE = "module://matplotlib_inline.backend_inline"


def be_kernel(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run a kernel until it is shut down."""
    import matplotlib
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    matplotlib.use(INLINE)  # a kernel says so in the environment, before matplotlib is imported
    use_the_same_server()
    Thread(target=end_with_the_build, daemon=True).start()
    IPKernelApp.launch_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def use_the_same_server() -> None:
    """Fork what this kernel launches from where it came from itself; start no server for that."""
    if sys.version_info < (3, 14):  # later servers want a key, which a kernel does not have
        server: Any = forkserver
        server.ensure_running = server._forkserver.ensure_running = resource_tracker.ensure_running


def end_with_the_build() -> None:
    """Kill this kernel and what it started, as soon as the process that asked for it is gone."""
    build = parent_process()
    assert build is not None
    build.join()
    os.killpg(0, signal.SIGKILL)


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
