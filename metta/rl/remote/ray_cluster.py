"""`RayCluster`: a Ray cluster on this machine alone, or one that is there, joined with its token."""

import contextlib
import importlib
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metta.errors import ConfigError, MissingExtraError, RolloutError
from metta.private_folders import ScratchFolder

__all__ = ["RayCluster"]

_CONNECT_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_LOCAL = {
    # Ray listens on all interfaces otherwise
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
}


class RayCluster:
    """Ray, connected; `close` disconnects, and ends what was started here.

    Without an `address` a cluster is started for this process: it listens on loopback, with a token that
    nobody else knows. A process that is connected already stays so.
    """

    def __init__(self, address: str | None, num_actors: int) -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtraError("ray", "ray", "collecting on Ray") from error
        self._folder: ScratchFolder | None = None
        self._is_own = not self.ray.is_initialized()
        if not self._is_own:
            return
        if address is None:
            self._start(num_actors)
        else:
            self._join(address)

    def _start(self, num_actors: int) -> None:
        self._folder = ScratchFolder("ray")
        token = {**_LOCAL, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with _variables(token):
            self.ray.init(
                address="local",
                num_cpus=max(num_actors, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=_LOOPBACK,
                _temp_dir=str(self._folder.path),
            )

    def _join(self, address: str) -> None:
        host, port = _host_and_port(address)
        if not _is_loopback(host) and not _has_token():
            raise ConfigError(
                f"address={address!r} is a cluster that others can reach, and there is no token for it: "
                "whoever reaches a Ray cluster without one runs code on it. Start it with "
                "RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH here"
            )
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except OSError as error:
            raise RolloutError(
                f"no Ray cluster answers at {address!r} ({error}); look at the address, and whether "
                "`ray start --head` is running there"
            ) from error
        try:
            self.ray.init(
                address=f"{host}:{port}", log_to_driver=False, logging_level=logging.ERROR
            )
        except (ConnectionError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise RolloutError(
                f"the Ray cluster at {address!r} refused this process: {error}; it needs the same version "
                f"of Ray and Python ({self.ray.__version__} here), and the same token"
            ) from error

    def close(self) -> None:
        """Disconnect; may be called more than once."""
        if self._is_own and self.ray.is_initialized():
            self.ray.shutdown()
        if self._folder is not None:
            self._folder.close()
            self._folder = None


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address.startswith("ray://") or not host or not port.isdigit():
        raise ConfigError(
            f"collect.address={address!r}; give host:port of a Ray head, such as 10.0.0.1:6379"
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return False
    places = [os.environ.get("RAY_AUTH_TOKEN_PATH"), str(Path.home() / ".ray" / "auth_token")]
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(p and Path(p).is_file() for p in places)
