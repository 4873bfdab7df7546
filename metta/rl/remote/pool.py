"""`CollectPool`: places where shards are collected; here, the one in this process."""

import copy
import traceback
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from metta.errors import MettaError
from metta.ops.threads import threads_set
from metta.rl.remote.shard_worker import ShardWorker
from metta.rl.remote.tasks import CollectSetup, Moment, ShardFailure, ShardResult, ShardTask

__all__ = ["Answer", "CollectPool", "InlinePool", "run_task"]


class Answer(NamedTuple):
    """What came from a place."""

    place: int
    process: int
    """The number of the process that gave it; a place that was restarted has another one."""
    outcome: ShardResult | ShardFailure


class CollectPool(Protocol):
    """Some places, each of which runs the tasks that it is given one after the other."""

    processes: list[int]
    """For each place, the number of the process that is there now."""

    def begin(self, moment: Moment) -> None:
        """Tasks that are given from now on are collected with this."""
        ...

    def give(self, place: int, task: ShardTask) -> None:
        """Let a place run a task; returns at once."""
        ...

    def wait(self, seconds: float) -> Sequence[Answer]:
        """Answers that have come, waiting so long for the first; empty: none came."""
        ...

    def restart(self, place: int) -> None:
        """End the process at this place, whatever it does, and start another one."""
        ...

    def close(self) -> None:
        """End all; may be called more than once."""
        ...


def run_task(
    worker: ShardWorker, moment: Moment | None, task: ShardTask
) -> ShardResult | ShardFailure:
    """Run a task; an exception becomes an answer."""
    try:
        if moment is not None:
            worker.begin(moment)
        return worker.run(task)
    except Exception as error:  # noqa: BLE001  # it goes to the process that trains, which raises it
        text = str(error) if isinstance(error, MettaError) else traceback.format_exc()
        return ShardFailure(text, type(error).__name__)


class InlinePool:
    """This process: a task is run when it is waited for, so nothing happens at the same time."""

    def __init__(self, setup: CollectSetup) -> None:
        own = CollectSetup(**{**vars(setup), "policy": copy.deepcopy(setup.policy)})
        if own.curriculum is not None:
            own = CollectSetup(**{**vars(own), "curriculum": copy.deepcopy(own.curriculum)})
        self._worker = ShardWorker(own)
        self._moment: Moment | None = None
        self._given: deque[tuple[int, Moment | None, ShardTask]] = deque()
        self.processes = [0]

    def begin(self, moment: Moment) -> None:
        """Keep it for the next tasks."""
        self._moment = moment

    def give(self, place: int, task: ShardTask) -> None:
        """Keep a task, with its moment."""
        self._given.append((place, self._moment, task))

    def wait(self, seconds: float) -> Sequence[Answer]:
        """Run what was given."""
        del seconds
        given, self._given = self._given, deque()
        with threads_set(torch.get_num_threads()):  # each moment brings its own number
            return [
                Answer(place, 0, run_task(self._worker, moment, task))
                for place, moment, task in given
            ]

    def restart(self, place: int) -> None:
        """This process does not end."""
        raise NotImplementedError(place)

    def close(self) -> None:
        """Close the environments."""
        self._worker.close()
