"""Whether a Ray cluster can be joined, and by whom else: found out in a moment, and said plainly."""

import contextlib
import importlib
import ipaddress
import json
import os
import platform
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metta.errors import ConfigError, RolloutError
from metta.rl.remote.ray_variables import with_variables

__all__ = ["check_cluster", "host_and_port", "is_loopback", "is_same", "require_lock", "token_mode"]

_CONNECT_SECONDS = 5.0
_IMPATIENT = {
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": "3",
}
"""Ray itself tries for a minute."""


def host_and_port(address: str) -> tuple[str, int]:
    """Of a Ray head; `ConfigError` if it is none."""
    host, _, port = address.rpartition(":")
    if address.startswith("ray://") or not host or not port.isdigit():
        raise ConfigError(
            f"collect.address={address!r}; give host:port of a Ray head, such as 10.0.0.1:6379"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host.strip("[]"))
        mapped = getattr(found, "ipv4_mapped", None)
        return found.is_loopback or (mapped is not None and mapped.is_loopback)
    return host == "localhost"


def is_same(address: str, other: str) -> bool:
    """Whether two addresses lead to one head, as far as names can be looked up."""
    places = []
    for host, port in map(host_and_port, (address, other)):
        with contextlib.suppress(OSError):
            host = socket.gethostbyname(host)
        places.append((host, port))
    return places[0] == places[1]


def token_mode(address: str, host: str) -> dict[str, str]:
    """Variables that let Ray show its token; `ConfigError` where others come in, and there is none."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode == "token" and _has_token():
        return {"RAY_AUTH_MODE": "token"}
    if not is_loopback(host):
        raise ConfigError(_open_to_all(address, "there is no token for it"))
    return {"RAY_AUTH_MODE": "disabled"}


def check_cluster(address: str, host: str, port: int, mode: Mapping[str, str]) -> None:
    """Ask the head for what joining needs; `RolloutError` or `ConfigError` says what does not fit."""
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise RolloutError(
            f"no Ray cluster answers at {address!r} ({error}); look at the address, and whether "
            "`ray start --head` is running there"
        ) from error
    errors: Any = importlib.import_module("ray.exceptions")
    with with_variables({**mode, **_IMPATIENT}, on_loopback=is_loopback(host)):
        try:
            client = _client(host, port)
            _require_versions(address, client)
            nodes = client.get_all_node_info(timeout=_CONNECT_SECONDS)
        except errors.AuthenticationError as error:
            has_none = mode["RAY_AUTH_MODE"] != "token"
            raise RolloutError(
                f"the Ray cluster at {address!r} has "
                f"{'a token, and there is none here' if has_none else 'another token than this process'}; "
                "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of the cluster"
            ) from error
        except errors.RayError as error:
            raise RolloutError(
                f"what listens at {address!r} does not answer as a Ray head does ({error}); look at the "
                "address and the port"
            ) from error
    alive = {key.hex(): node.node_manager_address for key, node in nodes.items() if node.state == 0}
    _require_node_here(address, alive)
    if not all(map(is_loopback, alive.values())):
        require_lock(address, host, port, mode)


def _client(host: str, port: int) -> Any:
    private: Any = importlib.import_module("ray._raylet")
    return private.GcsClient(address=f"{host}:{port}")


def _require_versions(address: str, client: Any) -> None:
    ray: Any = importlib.import_module("ray")
    found = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster") or b"{}")
    own = {"ray_version": ray.__version__, "python_version": platform.python_version()}
    other = [
        f"{name.partition('_')[0].capitalize()} {found.get(name)}, and {version} here"
        for name, version in own.items()
        if found.get(name) != version
    ]
    if other:
        raise RolloutError(
            f"the Ray cluster at {address!r} has {'; '.join(other)}: install the same on all machines"
        )


def _require_node_here(address: str, alive: Mapping[str, str]) -> None:
    services: Any = importlib.import_module("ray._private.services")
    if not set(services.find_node_ids()) & set(alive):
        raise RolloutError(
            f"this machine is not part of the Ray cluster at {address!r}, and a process joins through its "
            f"own machine: run `ray start --address={address}` here first (with --num-cpus=0, if nothing "
            "shall be collected here)"
        )


def require_lock(address: str, host: str, port: int, mode: Mapping[str, str]) -> None:
    """`ConfigError` if a cluster that others reach has no token, or takes any."""
    if mode["RAY_AUTH_MODE"] != "token":
        raise ConfigError(_open_to_all(address, "it has no token"))
    errors: Any = importlib.import_module("ray.exceptions")
    wrong = {**mode, **_IMPATIENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with with_variables(wrong, on_loopback=is_loopback(host)):
            _client(host, port)
    except errors.AuthenticationError:
        return
    raise ConfigError(_open_to_all(address, "it takes any token"))


def _open_to_all(address: str, why: str) -> str:
    return (
        f"collect.address={address!r} is a cluster that others can reach, and {why}: whoever reaches such "
        "a cluster runs code on it. Start it with RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH there and here"
    )


def _has_token() -> bool:
    places = [os.environ.get("RAY_AUTH_TOKEN_PATH"), str(Path.home() / ".ray" / "auth_token")]
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(p and Path(p).is_file() for p in places)
