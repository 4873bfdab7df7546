"""Bringing rows back into a worker that was started again, to the bit where environments allow it."""

import numpy as np

from metta.envs.restore.env_values import UnreadableStateError
from metta.envs.restore.episode_log import EpisodeLog
from metta.envs.vec_env import ObsArrays
from metta.envs.workers.pool import Limit, WorkerPool
from metta.envs.workers.worker import BRING_TO, FRESH, GET_STATE, RESET, RowRanges, unpack

__all__ = ["Revival"]


class Revival:
    """What the trainer knows about its rows: enough to restore them without the process that held them.

    Unfinished episodes are repeated: seed, number and actions are in the log. Where that fails, or ends at
    another observation than the one that was handed out last, rows are *lost*: they begin fresh episodes
    in place of the step under way, or of the next one.
    """

    def __init__(
        self,
        pool: WorkerPool,
        obs: ObsArrays,
        log: EpisodeLog,
        ranges: RowRanges,
        limits: tuple[Limit, Limit],
        tasks: np.ndarray,
    ) -> None:
        self._pool, self._obs, self._log, self._ranges = pool, obs, log, ranges
        self._step_limit, self._start_limit = limits
        self._tasks = tasks
        self._seen: list[ObsArrays | None] = [None] * len(ranges[0])
        self.lost: list[set[int]] = [set() for _ in ranges[0]]
        """For each group, workers whose rows begin fresh episodes in place of a step."""
        self.num_lost_rows = 0

    def begin(self) -> None:
        """All rows were placed anew."""
        self._seen = [None] * len(self._seen)
        for workers in self.lost:
            workers.clear()

    def hand_out(self, group: int, obs: ObsArrays) -> None:
        """Remember where the caller keeps what it saw last; it is not copied."""
        self._seen[group] = obs

    def bring_back(self, worker: int, failed_before: bool) -> str:
        """A `RecoverFn`: rows as they were, then the running steps once more."""
        why = "it failed again when its episodes were repeated" if failed_before else ""
        why = why or self._bring_to_places(worker)
        if why:
            self._lose(worker)
        for group in self._pool.steps_under_way:
            self._take_step(worker, group)
        return why

    def drop_steps(self, worker: int, failed_before: bool) -> str:
        """A `RecoverFn` for rows that will be placed anew anyway."""
        del failed_before
        for group in self._pool.steps_under_way:
            self._pool.mark_answered(worker, group)
        return ""

    def reset(self, worker: int, failed_before: bool) -> str:
        """A `RecoverFn` by the reset that is under way."""
        del failed_before
        self._pool.send(worker, RESET, self._start_limit)
        self._pool.wait_for(worker, RESET, self._start_limit)
        return ""

    def load(self, worker: int, failed_before: bool) -> str:
        """A `RecoverFn` to places that are being loaded."""
        del failed_before
        self.send_places(worker)
        self._pool.wait_for(worker, BRING_TO, self._start_limit)
        return ""

    def recover_states(self, worker: int, failed_before: bool) -> str:
        """A `RecoverFn` of a worker that was asked for the states of its rows; lost rows have none."""
        why = self.bring_back(worker, failed_before)
        if why:
            self._pool.mark_answered(worker, GET_STATE)
            return why
        self._pool.send(worker, GET_STATE, self._start_limit)
        self._pool.wait_for(worker, GET_STATE, self._start_limit)
        return ""

    def check_none_lost(self) -> None:
        """Refuse to save rows that have no state until the next step."""
        if any(self.lost):
            raise UnreadableStateError("some rows lost their episodes just now, with their worker")

    def send_step(self, worker: int, group: int) -> None:
        """Begin a step in one worker; lost rows begin their episodes instead."""
        if worker not in self.lost[group]:
            self._pool.send(worker, group, self._step_limit)
            return
        places = [self._log.place_of(row) for row in range(*self._ranges[worker][group])]
        fresh = group, [place.seed for place in places], [place.episode for place in places]
        self._pool.send(worker, FRESH, self._start_limit, fresh)

    def take_lost(self, group: int) -> np.ndarray:
        """Rows ``[K]`` of a group (the first is 0) that began fresh episodes; they are found again."""
        first = self._ranges[0][group][0]
        workers, self.lost[group] = sorted(self.lost[group]), set()
        return np.concatenate(
            [np.arange(*self._ranges[worker][group], dtype=np.int64) - first for worker in workers]
        )

    def send_places(self, worker: int) -> None:
        """Let a worker bring its rows, except lost ones, to where they are."""
        places = {
            group: [self._log.place_of(row, int(self._tasks[row])) for row in rows]
            for group, rows in self._kept_rows(worker).items()
        }
        self._pool.send(worker, BRING_TO, self._start_limit, places)

    def _kept_rows(self, worker: int) -> dict[int, range]:
        """The rows of each group that are not lost."""
        return {
            group: range(*rows)
            for group, rows in enumerate(self._ranges[worker])
            if worker not in self.lost[group]
        }

    def _take_step(self, worker: int, group: int) -> None:
        self.send_step(worker, group)
        is_lost = worker in self.lost[group]
        self._pool.wait_for(worker, group, self._start_limit if is_lost else self._step_limit)

    def _bring_to_places(self, worker: int) -> str:
        """Why the rows of a worker could not be brought back; empty where they were."""
        kept = self._kept_rows(worker)
        unknown = {row for rows in kept.values() for row in rows}
        unknown &= set(self._log.unknown_rows())
        if unknown:
            return f"how the episodes of rows {sorted(unknown)} began is not known"
        self._pool.expect(BRING_TO)
        self.send_places(worker)
        answer = self._pool.wait_for(worker, BRING_TO, self._start_limit)
        self._pool.forget(BRING_TO)
        error = unpack(answer.payload)
        if error is not None:
            return str(error)
        if not all(self._is_as_seen(group, rows) for group, rows in kept.items()):
            return "environments showed other observations when their episodes were repeated"
        return ""

    def _is_as_seen(self, group: int, rows: range) -> bool:
        seen, first = self._seen[group], self._ranges[0][group][0]
        if seen is None:
            return True
        here, there = slice(rows.start, rows.stop), slice(rows.start - first, rows.stop - first)
        return all(
            np.array_equal(array[here], seen[key][there]) for key, array in self._obs.items()
        )

    def _lose(self, worker: int) -> None:
        for (first, stop), workers in zip(self._ranges[worker], self.lost, strict=True):
            if worker not in workers:
                workers.add(worker)
                self.num_lost_rows += stop - first
