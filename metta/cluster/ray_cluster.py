"""`RayCluster`: a Ray cluster on this machine alone, or one that is there, joined with its token."""

import contextlib
import importlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from metta.cluster.head_address import HeadAddress, is_loopback
from metta.cluster.ray_join import check_cluster, token_mode
from metta.cluster.ray_variables import with_variables
from metta.envs.workers.guardian import Guardian
from metta.envs.workers.worker_process import worker_context
from metta.errors import ConfigError, MissingExtraError, RolloutError
from metta.private_folders import ScratchFolder

__all__ = ["RayCluster"]

_LOOPBACK = "127.0.0.1"
_OWN = {
    # otherwise Ray takes another address of this machine, and listens on all of them
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LONGEST_FOLDER = 40
"""Ray makes sockets below it, whose paths may have 107 bytes."""


class RayCluster:
    """Ray, connected; `close` disconnects, and ends what was started here.

    Without an `address` a cluster is started for this process: it listens on loopback, with a token that
    nobody else knows. A process has one connection: a second `RayCluster` shares that of the first, and
    one that the program made itself stays open. Errors name the `setting` that gave the address.
    """

    def __init__(self, address: str | None, num_actors: int, *, setting: str = "address") -> None:
        global _connection
        head = None if address is None else HeadAddress.parse(address, setting)
        try:
            with _few_words():
                self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtraError("ray", "ray", "a Ray cluster") from error
        if not self.ray.is_initialized():
            if _connection is not None:  # the program called ray.shutdown()
                _connection.close()
                _connection = None
            _connection = _Connection(self.ray, head, num_actors)
        elif head is not None:
            _require_same(self.ray, head)
        self._connection = _connection
        self.is_own = _connection is not None and _connection.is_own
        """Whether it was started by this process, for its actors alone."""
        if _connection is not None:
            _connection.users += 1

    def require_room(self, count: int, noun: str, advice: str) -> None:
        """`ConfigError` with the advice if there is not a processor for each of them."""
        found = self._num_processors()
        if found < count:
            raise ConfigError(
                f"{count} {noun} take a processor each, and the cluster has {found}; {advice}"
            )

    def processors_each(self, count: int) -> int:
        """1, or 0 if there are too few: what takes none runs wherever Ray puts it.

        Those of a cluster of their own share this machine, and so do all where nodes are gone.
        """
        return int(not self.is_own and self._num_processors() >= count)

    def _num_processors(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    def nodes_elsewhere(self) -> list[str]:
        """Addresses of the nodes that are not of this machine."""
        services: Any = importlib.import_module("ray._private.services")
        here = set(services.find_node_ids())
        alive = (node for node in self.ray.nodes() if node["Alive"])
        return [node["NodeManagerAddress"] for node in alive if node["NodeID"] not in here]

    def guard(self) -> None:
        """Let what Ray has started since then end with this process, too."""
        if self._connection is not None:
            self._connection.guard()

    def close(self) -> None:
        """Disconnect, unless others need the connection; may be called more than once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.users -= 1
            if connection.users == 0:
                connection.close()


class _Connection:
    """What connects this process, as long as somebody uses it."""

    def __init__(self, ray: Any, head: HeadAddress | None, num_actors: int) -> None:
        self.ray, self.users, self.is_own = ray, 0, head is None
        self._held = contextlib.ExitStack()
        self._guardian: Guardian | None = None
        self._started: set[psutil.Process] = set()
        try:
            with _own_signals():
                if head is None:
                    self._start(num_actors)
                else:
                    self._join(head)
        except BaseException:
            self.close()
            raise

    def _start(self, num_actors: int) -> None:
        folder = self._held.enter_context(_session_folder())
        listening, running = set(_open_ports()), set(_processes())
        with with_variables({**_OWN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}, on_loopback=True):
            try:
                self.ray.init(
                    address="local",
                    num_cpus=max(num_actors, os.cpu_count() or 1),
                    include_dashboard=False,
                    _node_ip_address=_LOOPBACK,
                    _temp_dir=str(folder),
                    **_session(self.ray),
                )
            except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
                raise RolloutError(
                    f"Ray {self.ray.__version__} could not be started here: {error}"
                ) from error
        _require_loopback(listening)
        self._started = set(_processes()) - running
        self._guardian = Guardian(worker_context())
        self._held.callback(self._guardian.dismiss)
        self.guard()

    def guard(self) -> None:
        """Let what Ray started end with this process; some would wait a minute for a head that is gone."""
        if self._guardian is not None:
            for process in self._started:
                with contextlib.suppress(psutil.Error):
                    for one in (process, *process.children(recursive=True)):
                        self._guardian.watch(one.pid, one.pid)

    def _join(self, head: HeadAddress) -> None:
        mode = token_mode(head)
        check_cluster(head, mode)
        with with_variables(mode, on_loopback=head.is_local):
            try:
                self.ray.init(address=f"{head.host}:{head.port}", **_session(self.ray))
            except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
                raise RolloutError(
                    f"the Ray cluster at {head.text!r} refused this process: {error}"
                ) from error

    def close(self) -> None:
        if self.ray.is_initialized():
            with _own_signals():
                self.ray.shutdown()
        self._held.close()


_connection: _Connection | None = None


def _session(ray: Any) -> dict[str, Any]:
    """What a driver says: where its modules are, and that it does not write what others print.

    Ray would have actors look into the driver's current folder first. Only a client's job leaves it out.
    """
    places = [place or str(Path.cwd()) for place in sys.path]
    job = ray.job_config.JobConfig(_client_job=True, _py_driver_sys_path=places[::-1])
    return {"job_config": job, "log_to_driver": False, "logging_level": logging.ERROR}


def _require_same(ray: Any, head: HeadAddress) -> None:
    found = ray.get_runtime_context().gcs_address
    if not head.is_same(HeadAddress.parse(found, head.setting)):
        raise ConfigError(
            f"{head.setting}={head.text!r}, but this process is connected to the Ray cluster at {found}; "
            "leave the address out, or call ray.shutdown() first"
        )


def _require_loopback(before: set[str]) -> None:
    """End Ray if other machines reach a process of it: other versions may do other things."""
    if new := [port for port in _open_ports() if port not in before]:
        raise RolloutError(
            f"{new[0]}, which belongs to Ray, can be reached from other machines, so Ray was ended; please "
            "report this, with the version of Ray"
        )


def _open_ports() -> Iterator[str]:
    """Where this process and those below it listen, except on loopback."""
    for process in (psutil.Process(), *_processes()):
        with contextlib.suppress(psutil.Error):
            for found in process.net_connections("inet"):
                if found.status == psutil.CONN_LISTEN and not is_loopback(found.laddr.ip):
                    yield f"{process.name()} at {found.laddr.ip}:{found.laddr.port}"


def _processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@contextlib.contextmanager
def _session_folder() -> Iterator[Path]:
    """A scratch folder or, where its path is too long, a private one in the system's temporary folder."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(ScratchFolder("ray")).path
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            short = tempfile.TemporaryDirectory(
                prefix="metta-ray-", dir=_short_root(), ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(short))
        yield folder


def _short_root() -> str:
    own = tempfile.gettempdir()
    return own if len(os.fsencode(own)) <= _LONGEST_FOLDER // 2 else "/tmp"


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
    """Ray writes a long text to standard output for each process that dies; metta has a line for it."""
    name = "RAY_DEDUP_LOGS_SKIP_REGEX"
    if name in os.environ:
        yield
        return
    os.environ[name] = "^A worker died or was killed while |^The node with node id|^Raylet is term"
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes over SIGTERM; the program keeps it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
