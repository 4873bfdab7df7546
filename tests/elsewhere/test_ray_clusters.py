"""Ray clusters that are there already: who joins them, what is refused, and nodes that go away."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from faults.node_kills import SOON
from metta import PPOTrainer, TrainerHook
from metta.cluster.head_address import HeadAddress
from metta.cluster.ray_cluster import RayCluster
from metta.cluster.ray_join import require_lock
from metta.errors import ConfigError, MettaError, RolloutError
from metta.rl.remote.remote_collector import RemoteCollector
from tests.ranks.kinds import digest_of, trainer_of

ray: Any = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.timeout(300)

TOKEN = "correct horse battery staple of 32 letters"
PROGRAM = str(Path(sys.executable).parent / "ray")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


class Head:
    """`ray start --head` on loopback, below this process."""

    def __init__(self, mode: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = tempfile.TemporaryDirectory(prefix="metta-head-", ignore_cleanup_errors=True)
        variables = {
            "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": TOKEN, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }  # fmt: skip
        words = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=2",
                 f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false",
                 "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0",
                 f"--ray-client-server-port={free_port()}", f"--temp-dir={self.folder.name}"]  # fmt: skip
        self.process = psutil.Popen(
            [PROGRAM, *words], env={**os.environ, **variables}, cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said = ""
        try:
            while "Ray runtime started" not in said:
                line = self.process.stdout.readline()
                assert line, said
                said += line
        except BaseException:
            self.end()
            raise

    def below(self, name: str) -> list[psutil.Process]:
        found = psutil.process_iter(["name", "ppid"])
        return [
            one
            for one in found
            if one.info["name"] == name and one.info["ppid"] == self.process.pid
        ]

    def end(self) -> None:
        all_of_it = [*self.process.children(recursive=True), self.process]
        for process in all_of_it:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(all_of_it, 20)
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    made = Head("token")
    yield made
    made.end()


def refusal(address: str) -> MettaError:
    with pytest.raises(MettaError) as caught:
        RayCluster(address, 1)
    assert not ray.is_initialized()
    return caught.value


def test_a_cluster_with_a_token_is_joined_by_a_run_of_another_folder(
    tmp_path: Path, head: Head, token: None
) -> None:
    expected = digest_of("custom loss", tmp_path / "here")
    joined = {"collect.kind": "ray", "collect.num_actors": 2, "collect.address": head.address}
    assert digest_of("custom loss", tmp_path / "ray", **joined) == expected
    assert head.process.is_running()
    assert not ray.is_initialized()


OWN = """
from metta.envs.toy import CorridorEnv

class Maze(CorridorEnv):
    pass
"""


@pytest.mark.parametrize("how", ["class", "id"])
def test_environments_that_are_not_installed_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: Head, token: None, how: str
) -> None:
    (tmp_path / f"joined_{how}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(f"joined_{how}")
    env = module.Maze if how == "class" else f"joined_{how}:Maze"
    settings: dict[str, Any] = {
        "num_envs": 1, "num_shards": 1, "horizon": 8, "hidden_size": 8, "verbose": False, "seed": 3,
        "recipe": "none",
    }  # fmt: skip
    with PPOTrainer(None, env, **settings) as trainer:
        expected = trainer.collect_rollouts(8)["observations"].tolist()
    joined = {"kind": "ray", "address": head.address}
    (tmp_path / f"joined_{how}.py").unlink()  # as if it were on another machine
    with PPOTrainer(None, env, **settings, collect=joined) as trainer:
        assert trainer.collect_rollouts(8)["observations"].tolist() == expected


def test_another_token_is_refused(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another token of at least 32 letters, or so")
    error = refusal(head.address)
    assert isinstance(error, RolloutError)
    assert "has another token than this process; set RAY_AUTH_TOKEN" in str(error)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert "has a token, and there is none here; set RAY_AUTH_TOKEN" in str(refusal(head.address))


@pytest.mark.parametrize(
    ("name", "message"),
    [("ray_version", r"has Ray 1\.0, and 2"), ("python_version", r"has Python 1\.0, and 3")],
)
def test_other_versions_are_refused(head: Head, token: None, name: str, message: str) -> None:
    from metta.cluster.ray_variables import with_variables

    with with_variables({"RAY_AUTH_MODE": "token"}, on_loopback=True):
        client = ray._raylet.GcsClient(address=head.address)
    found = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster")
    other = json.dumps({**json.loads(found), name: "1.0"}).encode()
    client.internal_kv_put(b"CLUSTER_METADATA", other, True, b"cluster")
    try:
        with pytest.raises(RolloutError, match=message):
            RayCluster(head.address, 1)
    finally:
        client.internal_kv_put(b"CLUSTER_METADATA", found, True, b"cluster")


def test_a_head_that_is_not_there_is_told_of(token: None) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RolloutError, match=f"no Ray cluster answers at '{address}'"):
        RayCluster(address, 1)


def test_something_else_that_listens_is_told_of(token: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(RolloutError, match="does not answer as a Ray head does"):
            RayCluster(address, 1)


@pytest.mark.parametrize("mode", [None, "disabled"])
def test_a_cluster_that_others_reach_is_refused_without_a_token_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)

    def nobody(*_: Any, **__: Any) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket, "create_connection", nobody)
    error = refusal("10.255.255.1:6379")
    assert isinstance(error, ConfigError)
    assert "others can reach, and there is no token for it" in str(error)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":6379"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="give host:port of a Ray head"):
        RayCluster(address, 1)


def test_a_process_that_is_connected_elsewhere_says_so(head: Head, token: None) -> None:
    first = RayCluster(head.address, 1)
    try:
        with pytest.raises(
            ConfigError, match="this process is connected to the Ray cluster at 127"
        ):
            RayCluster(f"127.0.0.1:{free_port()}", 1)
        second = RayCluster(head.address, 1)
        second.close()
        assert ray.is_initialized()
    finally:
        first.close()
    assert not ray.is_initialized()


def test_more_actors_than_processors_are_refused(head: Head, token: None) -> None:
    settings = {"num_envs": 4, "num_shards": 4, "verbose": False}
    with pytest.raises(ConfigError, match="4 actors take a processor each, and the cluster has 2"):
        PPOTrainer(
            None, "CartPole-v1", **settings, collect={"kind": "ray", "address": head.address}
        )
    assert not ray.is_initialized()


def test_a_machine_that_is_not_part_of_the_cluster_is_told_how_to_join(
    head: Head, token: None
) -> None:
    (raylet,) = head.below("raylet")
    head.process.send_signal(signal.SIGSTOP)  # it would end the head with its node
    raylet.kill()  # the last test of this head
    while raylet.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    error = refusal(head.address)
    assert f"run `ray start --address={head.address}` here first" in str(error)


def test_a_cluster_without_a_lock_is_refused_where_others_reach_it(token: None) -> None:
    lax = Head("disabled")
    place = HeadAddress.parse(lax.address, "collect.address")
    try:
        RayCluster(lax.address, 1).close()  # nobody else reaches this one
        with pytest.raises(ConfigError, match="others can reach, and it takes any token"):
            require_lock(place, {"RAY_AUTH_MODE": "token"})
        with pytest.raises(ConfigError, match="others can reach, and it has no token"):
            require_lock(place, {"RAY_AUTH_MODE": "disabled"})
    finally:
        lax.end()


class Removing(TrainerHook):
    """Takes a node away while its actors collect ahead."""

    def __init__(self, nodes: Any, node: Any) -> None:
        self.nodes, self.node = nodes, node

    def on_rollout_end(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 1:
            self.nodes.remove_node(self.node, allow_graceful=False)


@pytest.mark.slow  # the campaigns' short tiers kill as well
def test_a_node_that_is_gone_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: None
) -> None:
    from metta.cluster.ray_variables import with_variables

    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="part of ray")
    expected = digest_of("lstm", tmp_path / "serial", **{"collect.overlap": True})
    own = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    sessions = tempfile.TemporaryDirectory(prefix="metta-nodes-", ignore_cleanup_errors=True)
    monkeypatch.setenv("RAY_TMPDIR", sessions.name)
    Path(sessions.name, "ray").mkdir()  # the second node writes there, and does not make it
    with with_variables({}, on_loopback=True):
        head = {"num_cpus": 0, "_system_config": SOON, "temp_dir": sessions.name}
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        gone, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)
    try:
        settings = {"collect.kind": "ray", "collect.num_actors": 2, "collect.overlap": True,
                    "collect.address": nodes.address}  # fmt: skip
        with trainer_of("lstm", tmp_path / "ahead", **settings) as trainer:
            trainer.add_hook(Removing(nodes, gone))
            trainer.train()
            assert trainer.digest() == expected
            assert trainer.components is not None
            collector = trainer.components.collector
            assert isinstance(collector, RemoteCollector)
            assert collector.num_restarts >= 1
    finally:
        nodes.shutdown()
        sessions.cleanup()
