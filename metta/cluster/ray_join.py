"""Whether a Ray cluster can be joined, and by whom else: found out in a moment, and said plainly."""

import importlib
import json
import os
import platform
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metta.cluster.head_address import HeadAddress, is_loopback
from metta.cluster.ray_variables import with_variables
from metta.errors import ConfigError, RolloutError

__all__ = ["check_cluster", "require_lock", "token_mode"]

_CONNECT_SECONDS = 5.0
_IMPATIENT = {
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": "3",
}
"""Ray itself tries for a minute."""


def token_mode(head: HeadAddress) -> dict[str, str]:
    """Variables that let Ray show its token; `ConfigError` where others come in, and there is none."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode == "token" and _has_token():
        return {"RAY_AUTH_MODE": "token"}
    if not head.is_local:
        raise ConfigError(_open_to_all(head, "there is no token for it"))
    return {"RAY_AUTH_MODE": "disabled"}


def check_cluster(head: HeadAddress, mode: Mapping[str, str]) -> None:
    """Ask the head for what joining needs; `RolloutError` or `ConfigError` says what does not fit."""
    try:
        socket.create_connection((head.host, head.port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise RolloutError(
            f"no Ray cluster answers at {head.text!r} ({error}); look at the address, and whether "
            "`ray start --head` is running there"
        ) from error
    errors: Any = importlib.import_module("ray.exceptions")
    with with_variables({**mode, **_IMPATIENT}, on_loopback=head.is_local):
        try:
            client = _client(head)
            _require_versions(head, client)
            nodes = client.get_all_node_info(timeout=_CONNECT_SECONDS)
        except errors.AuthenticationError as error:
            has_none = mode["RAY_AUTH_MODE"] != "token"
            raise RolloutError(
                f"the Ray cluster at {head.text!r} has "
                f"{'a token, and there is none here' if has_none else 'another token than this process'}; "
                "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of the cluster"
            ) from error
        except errors.RayError as error:
            raise RolloutError(
                f"what listens at {head.text!r} does not answer as a Ray head does ({error}); look at the "
                "address and the port"
            ) from error
    alive = {key.hex(): node.node_manager_address for key, node in nodes.items() if node.state == 0}
    _require_node_here(head, alive)
    if not all(map(is_loopback, alive.values())):
        require_lock(head, mode)


def _client(head: HeadAddress) -> Any:
    private: Any = importlib.import_module("ray._raylet")
    return private.GcsClient(address=f"{head.host}:{head.port}")


def _require_versions(head: HeadAddress, client: Any) -> None:
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
            f"the Ray cluster at {head.text!r} has {'; '.join(other)}: install the same on all machines"
        )


def _require_node_here(head: HeadAddress, alive: Mapping[str, str]) -> None:
    services: Any = importlib.import_module("ray._private.services")
    if not set(services.find_node_ids()) & set(alive):
        raise RolloutError(
            f"this machine is not part of the Ray cluster at {head.text!r}, and a process joins through "
            f"its own machine: run `ray start --address={head.text}` here first (with --num-cpus=0, if "
            "nothing shall run on it)"
        )


def require_lock(head: HeadAddress, mode: Mapping[str, str]) -> None:
    """`ConfigError` if a cluster that others reach has no token, or takes any."""
    if mode["RAY_AUTH_MODE"] != "token":
        raise ConfigError(_open_to_all(head, "it has no token"))
    errors: Any = importlib.import_module("ray.exceptions")
    wrong = {**mode, **_IMPATIENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with with_variables(wrong, on_loopback=head.is_local):
            _client(head)
    except errors.AuthenticationError:
        return
    raise ConfigError(_open_to_all(head, "it takes any token"))


def _open_to_all(head: HeadAddress, why: str) -> str:
    return (
        f"{head.setting}={head.text!r} is a cluster that others can reach, and {why}: whoever reaches such "
        "a cluster runs code on it. Start it with RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH there and here"
    )


def _has_token() -> bool:
    places = [os.environ.get("RAY_AUTH_TOKEN_PATH"), str(Path.home() / ".ray" / "auth_token")]
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(p and Path(p).is_file() for p in places)
