"""Machines that go away: nodes of a Ray cluster are removed while their actors collect.

A cluster of Ray's own for tests has a head that collects nothing, and three nodes with a processor each.
A run joins it with two actors and collects ahead. Every few epochs a node with an actor is ended, as by a
power cut, and another one is added. Each removal is a trial. The run must give what an undisturbed one in
one process gives: samples, digests of all components after every epoch, and rows of metrics.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from faults.collector_kills import Samples, compare
from faults.training import STEPS_PER_EPOCH, trainer_of
from faults.trial import Trial
from faults.zygote import Zygote
from metta.cluster.ray_variables import with_variables
from metta.rl.hooks.base import TrainerHook
from metta.testing.digests import DigestHook

EVERY, NUM_NODES = 3, 3
_SECONDS = 900.0
_LONGEST_WAIT = 0.3
_PER_RUN = 10
SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""Settings with which a head notices that a node is gone; otherwise it takes 20 seconds."""


class Removing(TrainerHook):
    """Ends nodes, each a random while after the beginning of an epoch."""

    def __init__(self, nodes, seed: int, count: int, path: Path) -> None:
        self._nodes, self._path, self._left = nodes, path, count
        self._chance = random.Random(seed)
        self._thread: threading.Thread | None = None
        self._is_one_gone = False

    def on_epoch_start(self, trainer_state) -> None:
        if trainer_state.epoch % EVERY == 1 and self._left:
            self._left -= 1
            self._join()
            wait = self._chance.uniform(0.0, _LONGEST_WAIT)
            self._thread = threading.Thread(target=self._remove, args=(wait,))
            self._thread.start()

    def on_training_end(self) -> None:
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._is_one_gone:  # Ray adds nodes in the main thread only
            self._nodes.add_node(num_cpus=1)
            self._is_one_gone = False

    def _remove(self, wait: float) -> None:
        time.sleep(wait)
        nodes = sorted(self._nodes.worker_nodes, key=lambda node: node.node_id)
        busy = [node for node in nodes if actors_of(node)]
        if not busy:
            return
        node = busy[self._chance.randrange(len(busy))]
        actors = actors_of(node)
        for pid in [*raylets_of(node), *actors]:  # all at once: Ray itself would take its time
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._nodes.remove_node(node, allow_graceful=False)
        with self._path.open("a") as file:
            file.write(json.dumps({"actors": len(actors), "after": round(wait, 4)}) + "\n")
        self._is_one_gone = True


def raylets_of(node) -> list[int]:
    return [found.process.pid for found in node.all_processes["raylet"]]


def actors_of(node) -> list[int]:
    """Processes of a node that collect."""
    found = []
    with contextlib.suppress(psutil.Error):
        for pid in raylets_of(node):
            below = psutil.Process(pid).children(recursive=True)
            found += [one.pid for one in below if one.name().startswith("ray::RayCollect")]
    return found


def run(folder: str, seed: int | None, count: int) -> None:
    """One run, in a process of its own; without a seed it is undisturbed, and here."""
    path = Path(folder)
    path.mkdir()
    settings = {
        "core": "lstm", "total_timesteps": (_PER_RUN + 1) * EVERY * STEPS_PER_EPOCH,
        "checkpoint_interval": 5,
    }  # fmt: skip
    if seed is None:
        _train(path, {**settings, "collect.kind": "here"})
        return
    # on loopback, with a token: what is started for a test is not for others
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    own = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0",
           "RAY_DEDUP_LOGS_SKIP_REGEX": "."}  # fmt: skip  # long texts on every node that is gone
    os.environ.update(own)
    from ray.cluster_utils import Cluster  # where Ray is missing, other campaigns run

    sessions = tempfile.TemporaryDirectory(prefix="metta-nodes-", ignore_cleanup_errors=True)
    os.environ["RAY_TMPDIR"] = sessions.name
    Path(sessions.name, "ray").mkdir()  # nodes that are added write there, and do not make it
    head = {"num_cpus": 0, "_system_config": SOON, "temp_dir": sessions.name}
    with with_variables(own, on_loopback=True):
        nodes = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(NUM_NODES):
            nodes.add_node(num_cpus=1)
    try:
        settings |= {
            "collect.kind": "ray", "collect.num_actors": 2, "collect.address": nodes.address,
            "collect.max_actor_restarts": 1000,
        }  # fmt: skip
        _train(path, settings, Removing(nodes, seed, count, path / "removed"))
    finally:
        nodes.shutdown()
        sessions.cleanup()


def _train(path: Path, settings, *hooks: TrainerHook) -> None:
    with trainer_of("workers-ahead", path, **settings) as trainer:
        for hook in (DigestHook(path / "digests.jsonl"), Samples(path / "samples"), *hooks):
            trainer.add_hook(hook)
        trainer.train()


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` removals, some in each run."""
    choose, whole = random.Random(seed), folder / "whole"
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        name = "faults.node_kills:run"
        assert zygote.start(name, folder=str(whole), seed=None, count=0).wait(_SECONDS) == 0
        made = 0
        while made < count:
            own = folder / f"from-{made}"
            arguments = {"seed": choose.getrandbits(32), "count": min(_PER_RUN, count - made)}
            code = zygote.start(name, folder=str(own), **arguments).wait(_SECONDS)
            outcome, digest = compare(whole, own, code)
            gone = (own / "removed").read_text().splitlines() if (own / "removed").exists() else []
            if not gone:
                outcome = f"nothing was removed ({outcome})"
            for line in gone or ["{}"]:
                detail = json.loads(line)
                point = f"actors on it: {detail.get('actors', 0)}"
                yield Trial("node_kills", seed, point, outcome, digest, detail)
            made += max(1, len(gone))
