"""The bytes that this process has sent over the network, as Linux counts them, by whatever call."""

import os
import socket
import struct
from contextlib import suppress

SENT, AGAIN = 200, 208  # tcpi_bytes_sent, tcpi_bytes_retrans in tcp_info of linux/tcp.h


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
                sent, again = struct.unpack_from("2Q", info.ljust(AGAIN + 8, b"\0"), SENT)
                return int(sent - again)
        finally:
            end.detach()
    return 0
