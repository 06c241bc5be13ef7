"""By which address and network interface this machine meets the others of a run: those of the way to where they meet.

A host name often means another address, or the loopback. Owns that finding out; it opens no connection. IPv4; on Linux
the interface's name, too. Who calls: launch/agent, where several machines are meant.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path

_SIOCGIFADDR = 0x8915


def towards(host: str, port: int) -> str | None:
    """The address of this machine from which packets to `host` are sent; None where nothing leads there."""
    # a datagram socket sends nothing when it is connected: the system only looks up the route
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
    return None


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's for itself."""
    return address.startswith("127.")


def hosts(host: str, port: int, own: str) -> bool | None:
    """Whether this machine is to have the meeting place: its address is meant, and nobody has taken the port yet.

    None for the loopback, where torch finds out by itself.
    """
    if is_loopback(own):
        return None
    try:
        if socket.gethostbyname(host) != own:
            return False
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((own, port))
    except OSError:
        return False
    return True


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address; None where that cannot be found."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def give_up_after(host: str, port: int, within_s: int) -> None:
    """Has this process's connections to `host` fail where nothing is heard from there for so long; on Linux.

    Without it a read from a machine that is cut off waits until the system gives up, a quarter of an hour later: torch
    sets a timeout for some of what it asks a store, and none for the rest.
    """
    if sys.platform != "linux":
        return
    try:
        address = socket.gethostbyname(host)
    except OSError:  # a host that has no IPv4 address
        return
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # one that was closed meanwhile, or has no peer
            if os.readlink(path).startswith("socket:"):
                _give_up_after(int(path.name), address, port, within_s)


def _give_up_after(number: int, address: str, port: int, within_s: int) -> None:
    """The same for one open file, where it is such a connection."""
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return
        peer = one.getpeername()
        if (str(peer[0]).removeprefix("::ffff:"), peer[1]) != (address, port):  # "::ffff:" in a socket of both kinds
            return
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(within_s // 4, 1))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(within_s // 4, 1))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, within_s * 1000)
