"""`HeadAddress`: where the head of a Ray cluster listens, and which setting says so."""

import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import Self

from metta.errors import ConfigError

__all__ = ["HeadAddress", "is_loopback"]


@dataclass(frozen=True)
class HeadAddress:
    """Host and port, read from a setting that errors name."""

    text: str
    setting: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, setting: str) -> Self:
        """Of ``host:port``; `ConfigError` if it is not that."""
        host, _, port = text.rpartition(":")
        if text.startswith("ray://") or not host or not port.isdigit():
            raise ConfigError(
                f"{setting}={text!r}; give host:port of a Ray head, such as 10.0.0.1:6379"
            )
        return cls(text, setting, host, int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def is_same(self, other: "HeadAddress") -> bool:
        """Whether both lead to one head, as far as names can be looked up."""
        return (_looked_up(self.host), self.port) == (_looked_up(other.host), other.port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host.strip("[]"))
        mapped = getattr(found, "ipv4_mapped", None)
        return found.is_loopback or (mapped is not None and mapped.is_loopback)
    return host == "localhost"


def _looked_up(host: str) -> str:
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    return host
