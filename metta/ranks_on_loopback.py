"""torchrun for the ranks of this machine: what keeps them together listens on loopback.

torchrun itself listens on all interfaces, whatever address it is given, and asks nobody for a password. Its
server takes a socket that is bound already, so it gets one of 127.0.0.1.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
from torch.distributed.run import main

__all__ = ["main", "stay_on_loopback"]

_LOOPBACK = "127.0.0.1"
_LOOPBACK_DEVICE = "lo"


def stay_on_loopback() -> None:
    """Let servers of this process, and ranks that it starts, listen on loopback only."""
    torch: Any = dist
    store = torch.TCPStore

    def on_loopback(host_name: str, port: int, *arguments: Any, **options: Any) -> Any:
        if options.get("is_master"):
            bound = socket.create_server((_LOOPBACK, port))
            host_name, port = bound.getsockname()
            options["master_listen_fd"] = bound.detach()
        return store(host_name, port, *arguments, **options)

    torch.TCPStore = on_loopback
    backend: Any = c10d_rendezvous_backend
    backend.TCPStore = on_loopback
    if (Path("/sys/class/net") / _LOOPBACK_DEVICE).exists():
        # ranks send numbers to each other; otherwise the name of the machine decides where they listen
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK_DEVICE)


if __name__ == "__main__":
    stay_on_loopback()
    sys.exit(main())
