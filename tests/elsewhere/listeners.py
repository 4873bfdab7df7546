"""Where processes of a test listen."""

from collections.abc import Iterator

import psutil


def open_ports(pid: int) -> Iterator[tuple[str, str]]:
    """Name and host of every socket at which a process, or one below it, listens."""
    own = psutil.Process(pid)
    for process in (own, *own.children(recursive=True)):
        for found in process.net_connections("inet"):
            if found.status == psutil.CONN_LISTEN:
                yield process.name(), found.laddr.ip
