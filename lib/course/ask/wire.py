"""The bytes that this process has given to the network, as Linux counts them, by whatever call.

Those that still wait in a socket count: when they leave depends on the machine's other work.
"""

import os
import socket
import struct
from contextlib import suppress

# tcpi_notsent_bytes, tcpi_bytes_sent, tcpi_bytes_retrans in tcp_info of linux/tcp.h
WAITING, SENT, AGAIN = 144, 200, 208
SPARE = 1.1, 512  # times, and bytes: what a process may put on the network beside what is enough
HEADERS = {"send": 100, "recv": 60}  # bytes, at most, for each message that is posted


def too_much(found: int, enough: int, instead: str, messages: int = 0) -> str:
    """A sentence on bytes beside those that are enough, with so many messages more; or ""."""
    if found <= SPARE[0] * enough + SPARE[1] + sum(HEADERS.values()) * messages:
        return ""
    return (
        f"this rank puts {found:,} bytes on the network, headers included; {enough:,} are enough. "
        f"Send nothing beside {instead}."
    )


def sent() -> int:
    """The bytes on all open TCP connections, headers of Gloo included; 0 where nobody counts."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir("/proc/self/fd"):
        return 0
    return sum(map(_sent_on, map(int, os.listdir("/proc/self/fd"))))


def _sent_on(descriptor: int) -> int:
    with suppress(OSError):  # not a socket
        end = socket.socket(fileno=descriptor)
        try:
            if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, AGAIN + 8)
                info = info.ljust(AGAIN + 8, b"\0")
                (waiting,) = struct.unpack_from("I", info, WAITING)
                sent, again = struct.unpack_from("2Q", info, SENT)
                return int(waiting + sent - again)
        finally:
            end.detach()
    return 0
