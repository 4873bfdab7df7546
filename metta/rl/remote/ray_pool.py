"""`RayPool`: shards are collected by actors on Ray (extra `ray`)."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from metta.cluster.ray_cluster import RayCluster
from metta.rl.remote.own_modules import pack_with_modules, unpack_with_modules
from metta.rl.remote.pool import Answer, run_task
from metta.rl.remote.shard_worker import ShardWorker
from metta.rl.remote.tasks import CollectSetup, Moment, ShardFailure, ShardResult, ShardTask

__all__ = ["RayPool"]


class RayCollector:
    """One actor: a `ShardWorker` that answers over Ray."""

    def __init__(self, setup: bytes) -> None:
        self._setup: bytes | None = setup
        self._worker: ShardWorker | None = None

    def run(self, moment: Moment | None, task: ShardTask) -> ShardResult | ShardFailure:
        """Run a task; the first one makes the worker."""
        if self._worker is None:
            try:
                self._worker, self._setup = (
                    ShardWorker(unpack_with_modules(self._setup or b"")),
                    None,
                )
            except Exception as error:  # noqa: BLE001  # the trainer raises it
                return ShardFailure(f"{type(error).__name__}: {error}", type(error).__name__)
        return run_task(self._worker, moment, task)

    def pid(self) -> int:
        """Of the process that it is."""
        return os.getpid()


class RayPool:
    """Actors on a cluster, each with one processor.

    Weights are put into Ray's object store once for each rollout, and every node fetches them once.
    """

    def __init__(self, setup: CollectSetup, size: int, address: str | None = None) -> None:
        self._cluster = RayCluster(address, size, setting="collect.address")
        try:
            self._ray: Any = self._cluster.ray
            self._cluster.require_room(
                size, "actors", "lower collect.num_actors (or num_shards), or add nodes"
            )
            self._actor = self._ray.remote(max_restarts=0)(RayCollector)
            self._setup = self._ray.put(pack_with_modules(setup))
            self.processes = list(range(size))
            self._actors = [self._start() for _ in self.processes]
        except BaseException:
            self._cluster.close()
            raise
        self._moment: Any = None
        self._is_guarded = False
        self._answers: dict[Any, tuple[int, int]] = {}

    def _start(self) -> Any:
        num_cpus = self._cluster.processors_each(len(self.processes))
        return self._actor.options(num_cpus=num_cpus).remote(self._setup)

    def begin(self, moment: Moment) -> None:
        """Put it into the object store."""
        self._moment = self._ray.put(moment)

    def give(self, place: int, task: ShardTask) -> None:
        """Call an actor."""
        answer = self._actors[place].run.remote(self._moment, task)
        self._answers[answer] = place, self.processes[place]

    def wait(self, seconds: float) -> Sequence[Answer]:
        """Results, and the ends of actors and nodes."""
        if not self._answers:
            return []
        waiting = list(self._answers)
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        found = []
        for answer in ready:
            place, process = self._answers.pop(answer)
            try:
                outcome = self._ray.get(answer)
            except self._ray.exceptions.RayTaskError as error:  # not even the task could be read
                outcome = ShardFailure(str(error), type(error.cause).__name__)
            except self._ray.exceptions.RayError as error:
                outcome = ShardFailure(f"collecting actor {place} ended: {_in_one_line(error)}")
            found.append(Answer(place, process, outcome))
        if found and not self._is_guarded:
            self._cluster.guard()  # by now Ray has started all that it starts
            self._is_guarded = True
        return found

    @property
    def pids(self) -> list[int]:
        """Of the actors, by place, on their machines."""
        found: list[int] = self._ray.get([actor.pid.remote() for actor in self._actors])
        return found

    def restart(self, place: int) -> None:
        """Kill the actor, and start another, wherever Ray has room for it."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actors[place], no_restart=True)
        self.processes[place] = max(self.processes) + 1
        self._actors[place] = self._start()

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        self._actors.clear()
        self._answers.clear()
        self._cluster.close()


def _in_one_line(error: Exception) -> str:
    """What Ray says at length: that the actor is gone, and what it died of."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
