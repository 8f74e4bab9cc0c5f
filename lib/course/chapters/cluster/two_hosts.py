"""Two hosts on one machine: a script starts on them as it would on two computers.

On Linux a *network namespace* is a host as far as the network goes: it has interfaces and addresses
of its own, and sees no others. Two of them, joined by a virtual cable, need no privileges where
the kernel lets a user make a user namespace. Elsewhere two launchers on the loopback interface
take their place; they differ in that every rank sees every address.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from subprocess import PIPE
from typing import NamedTuple, TextIO

PATIENCE = 3.0  # seconds between two lines about a run
STAY = ("sh", "-c", "echo here; exec cat")  # until we close its input, or are gone
USER: tuple[str, ...] = ("--user", "--preserve-credentials")
NO = ("not permitted", "denied", "not supported", "Unknown device type")  # a kernel's refusals


class Forbidden(Exception):
    """The kernel does not let us make two hosts: why."""


class ToolMissing(Forbidden):
    """A program that makes them is not installed."""


class Host(NamedTuple):
    """A place for a launcher. `enter`: the words to put before a command to run it there."""

    address: str
    interface: str
    enter: tuple[str, ...] = ()


@contextmanager
def two_hosts() -> Iterator[tuple[list[Host], str]]:
    """Two cabled hosts, or where there can be none two on the loopback interface; and which."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(cabled()), "two network namespaces, joined by a cable"
        except Forbidden as why:
            made = loopback(), f"two launchers on the loopback interface, since {why}"
        yield made


def loopback() -> list[Host]:
    """Two hosts in name only: both are this machine, on its loopback interface."""
    interface = "lo0" if sys.platform == "darwin" else "lo"
    return [Host("127.0.0.1", interface)] * 2


@contextmanager
def cabled() -> Iterator[list[Host]]:
    """Two network namespaces joined by a virtual cable. They are gone when the block ends."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if not shutil.which(tool)]
    if missing:
        raise ToolMissing(f"needs {', '.join(missing)} (packages util-linux and iproute2)")
    with ExitStack() as stack:
        try:
            own_user = _staying("unshare", "--user", "--map-root-user", "--net")
            first, user = stack.enter_context(own_user), USER
        except Forbidden:  # root needs no user of its own there
            first, user = stack.enter_context(_staying("unshare", "--net")), ()
        into = ("nsenter", "--target", str(first), *user)
        second = stack.enter_context(_staying(*into, "unshare", "--net"))
        hosts = [
            Host(f"10.77.0.{number}", "eth0", ("nsenter", "--target", str(pid), *user, "--net"))
            for number, pid in enumerate((first, second), 1)
        ]
        _ip(hosts[0], f"link add eth0 type veth peer name eth0 netns {second}")
        for host in hosts:
            _ip(host, f"address add {host.address}/24 dev {host.interface}")
            for interface in ("lo", host.interface):
                _ip(host, f"link set {interface} up")
        yield hosts


@contextmanager
def _staying(*unshare: str) -> Iterator[int]:
    """A process that holds a namespace open; its id."""
    with subprocess.Popen(  # at the end it closes the process's input, and so ends it
        [*unshare, *STAY], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        if process.stdout.readline() != "here\n":
            raise Forbidden(process.stderr.read().strip() or "unshare ended without a word")
        yield process.pid


def _ip(host: Host, command: str) -> None:
    done = subprocess.run([*host.enter, "ip", *command.split()], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip()
        no = any(word in said for word in NO)
        raise (Forbidden if no else RuntimeError)(f"ip {command}: {said}")


def torchrun(
    hosts: Sequence[Host],
    per_node: int,
    *script: str,
    timeout: float = 600.0,
    c10d: Host | None = None,
) -> list[str]:
    """Start `script` with torchrun on every host, `per_node` ranks each; what each host printed.

    The first host is the master: the others find it by its address and a port. With `c10d` the
    launchers meet at that host instead, and agree there on who is which node. If they do not all
    end within `timeout` seconds, they are stopped.
    """
    port = _free_port()
    launcher = f"-m torch.distributed.run --nnodes {len(hosts)} --nproc-per-node {per_node}"

    def command(node: int, host: Host) -> list[str]:
        if c10d is None:
            meeting = f"--master-addr {hosts[0].address} --master-port {port} --node-rank {node}"
        else:
            own = f"--rdzv-conf is_host={str(host is c10d).lower()} --local-addr {host.address}"
            meeting = f"--rdzv-backend c10d --rdzv-endpoint {c10d.address}:{port} {own}"
        return [*host.enter, sys.executable, *f"{launcher} {meeting}".split(), *script]

    with ExitStack() as stack:
        outs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in hosts]
        errs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in hosts]
        launchers = [
            subprocess.Popen(
                command(node, host),
                env=os.environ | {"GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"},
                stdout=outs[node],
                stderr=errs[node],
            )
            for node, host in enumerate(hosts)
        ]
        try:
            codes = _wait(launchers, outs, timeout)
        finally:
            for process in launchers:
                _stop(process)
        for node, code in enumerate(codes):
            if code:
                raise RuntimeError(f"torchrun on node {node} failed:\n{_read(errs[node])[-3000:]}")
        return [_read(each) for each in outs]


def _wait(
    launchers: Sequence[subprocess.Popen[bytes]], outs: Sequence[TextIO], timeout: float
) -> list[int]:
    """Their exit codes; meanwhile say every few seconds what was printed last."""
    start = said = time.monotonic()
    while True:
        codes = [code for each in launchers if (code := each.poll()) is not None]
        if len(codes) == len(launchers):
            return codes
        now = time.monotonic()
        if now - start > timeout:
            raise subprocess.TimeoutExpired("torchrun", timeout)
        if now - said > PATIENCE and "TQDM_DISABLE" not in os.environ:
            said = now
            lines = [line for out in outs for line in _read(out).splitlines()]
            last = lines[-1] if lines else "nothing is printed yet"
            print(f"torchrun, after {now - start:.0f} s: {last}", flush=True)
        time.sleep(0.05)


def _read(file: TextIO) -> str:
    """The content of a file that others write to, whose position is theirs too."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def _free_port() -> int:
    """One below those that the system hands out, so nobody is given it before it is used."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _stop(launcher: subprocess.Popen[bytes]) -> None:
    """End a launcher that still runs. Asked to, it ends its ranks; killed, it leaves them."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(40)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
