"""One run at a time in a folder of checkpoints: its rank 0 holds `run.lock` there.

[Note: who is dead] If the holder was a process of this machine, its number tells. The lock of a
dead one is taken over at once, so torchrun can restart a killed run. Of other machines nothing is
known but that a holder touches its lock each second. One that has not been touched for PATIENCE
seconds is taken over too, so a run that starts again on another host waits that long, no longer.
Clocks differ between hosts, so the lock is watched: no time in it is compared with the time here.

A holder that was only suspended wakes up and finds its lock taken: see `Lock.check`.
"""

import atexit
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from minidist.train.options import LOG, TrainError

BEAT, PATIENCE = 1.0, 15.0  # seconds


class Lock:
    """Holds a folder until `release`, or until this process ends; TrainError if another one does.

    A second lock of the same process takes over the first, as a notebook's cell that is run again.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._released = folder / "run.lock", Event()
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        who = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
        self.mine = {**who, "machine": machine(), "id": uuid4().hex}
        descriptor = os.open(folder, os.O_RDONLY)
        try:  # one at a time looks who holds the lock, and takes it
            with suppress(OSError):  # some network file systems cannot: then the later one holds
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._wait_for_the_holder()
            self._write()
        finally:
            os.close(descriptor)
        Thread(target=self._touch, daemon=True).start()
        atexit.register(self.release)

    def check(self) -> None:
        """Raise TrainError if another run has taken the lock over; make a deleted one again."""
        holder, _ = look(self.path)
        if not holder:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        elif holder.get("id") != self.mine["id"]:
            raise TrainError(f"{self.path.parent} was taken over by {in_words(holder)}")

    def release(self) -> None:
        atexit.unregister(self.release)
        self._released.set()
        if look(self.path)[0].get("id") == self.mine["id"]:
            self.path.unlink()

    def _wait_for_the_holder(self) -> None:
        seen = holder, touched = look(self.path)
        ours = holder.get("machine") == self.mine["machine"]
        if not touched or (ours and holder["pid"] == os.getpid()):
            return
        who, deadline = in_words(holder), time.monotonic() + PATIENCE
        if ours and not running(holder["pid"]):
            LOG.info(f"took over {self.path} from {who}, which is dead")
            return
        while time.monotonic() < deadline:
            time.sleep(BEAT / 4)
            now = look(self.path)
            if not now[1]:
                return
            if now != seen:
                raise TrainError(
                    f"--checkpoint: {self.path.parent} is in use by {who}; choose another folder, "
                    "or end that run"
                )
        LOG.warning(f"took over {self.path} from {who}, silent for {PATIENCE:g} s")

    def _write(self) -> None:
        aside = self.path.with_name(f"{self.mine['id']}.lock")
        aside.write_text(json.dumps(self.mine))
        aside.replace(self.path)

    def _touch(self) -> None:
        while not self._released.wait(BEAT):
            with suppress(OSError):
                if look(self.path)[0].get("id") == self.mine["id"]:
                    os.utime(self.path)


def look(path: Path) -> tuple[dict[str, Any], int]:
    """Who holds a lock, and when it was touched: 0 if there is none."""
    try:
        with path.open() as file:  # opened, a file on a network is as its server knows it
            touched, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
        return dict(json.loads(text)), touched
    except FileNotFoundError:
        return {}, 0
    except (ValueError, TypeError):  # empty after a power cut
        return {}, touched


def in_words(holder: dict[str, Any]) -> str:
    pid, host, since = (holder.get(key, "?") for key in ("pid", "host", "since"))
    return f"process {pid} on {host} (since {since})"


def machine() -> str:
    """Where a number means one process: a host, since it was started, or a container there."""
    names = [socket.gethostname()]
    with suppress(OSError):  # Linux has these
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(names)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True
