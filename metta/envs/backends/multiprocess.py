"""Environments in worker processes, with observations in shared memory."""

import json
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from metta.envs.backends.logged_rows import LoggedRows
from metta.envs.call_order import check_actions, check_reset
from metta.envs.rows.row_spec import EnvFactory, RowSpec, build_env, row_spec_of
from metta.envs.rows.tasked_env import RowTasks, TaskedEnv
from metta.envs.vec_env import ObsArrays, StepResult
from metta.envs.workers.pool import Answer, Limit, WorkerPool, WorkersFailedError
from metta.envs.workers.revival import Revival
from metta.envs.workers.shared_rows import SharedRows, allocate_block
from metta.envs.workers.supervision import OnEnvError, RecoverFn, Restart, RestartBudget, Supervisor
from metta.envs.workers.worker import (
    BRING_TO,
    FLAG_CUT,
    GET_STATE,
    RESET,
    unpack,
    worker_jobs,
    worker_row_ranges,
)
from metta.envs.workers.worker_process import worker_context
from metta.errors import EnvError, MettaError, MettaWarning
from metta.train.train_config import RolloutConfig

__all__ = ["MultiprocessVecEnv"]

_DEFAULTS = RolloutConfig()


class MultiprocessVecEnv(LoggedRows):
    """A `VecEnv` whose rows are stepped by worker processes; equal to `SerialVecEnv` to the bit.

        envs = MultiprocessVecEnv([make_env] * 16, num_workers=4, num_groups=2)
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs_of_group)
        envs.close()

    Every worker has rows of every group. A worker that dies, or whose step (or autoreset) takes longer than
    `step_timeout_seconds`, is killed and started again, up to `max_worker_restarts` times an hour. Its
    unfinished episodes are repeated there, and the caller notices nothing. Where an environment does not
    repeat itself, its rows are in `StepResult.lost`; to see that, observations are compared with those
    written last, so leave these as they are until the next `recv` of the group.

    Beyond that budget, and where an environment raises (unless ``on_env_error="restart"``), all workers
    stop with an `EnvError`. `start_timeout_seconds` bounds making environments, `reset` and the repeating.
    One environment is made and closed in this process to read the spaces.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        num_workers: int,
        num_groups: int = 1,
        *,
        step_timeout_seconds: float = _DEFAULTS.step_timeout_seconds,
        start_timeout_seconds: float = _DEFAULTS.start_timeout_seconds,
        max_worker_restarts: int = _DEFAULTS.max_worker_restarts,
        on_env_error: OnEnvError = _DEFAULTS.on_env_error,
    ) -> None:
        ranges = worker_row_ranges(len(factories), num_groups, num_workers)
        self._step_limit = Limit(step_timeout_seconds, "step_timeout_seconds")
        self._start_limit = Limit(start_timeout_seconds, "start_timeout_seconds")
        spec, num_tasks = _probe(factories[0])
        context = worker_context()
        block = allocate_block(context, spec, len(factories))
        self._shared = SharedRows.over(block, spec, len(factories))
        tasks = RowTasks(np.zeros_like(self._shared.next_tasks), self._shared.next_tasks)
        may_restart = max_worker_restarts > 0
        super().__init__(factories, spec, num_groups, tasks, num_tasks, may_restart=may_restart)
        # where a worker's rows begin inside their group
        self._offsets = [
            [mine[group][0] - rows.start for mine in ranges]
            for group, rows in enumerate(self._slices)
        ]
        self._group_arrays = [self._shared.arrays.part(rows) for rows in self._slices]
        self._group_obs = [
            {key: array[rows] for key, array in self._shared.obs.items()} for rows in self._slices
        ]
        self._group_actions = [self._shared.actions[rows] for rows in self._slices]
        self._num_reported = 0
        self._pool = WorkerPool(context, worker_jobs(factories, spec, ranges), block)
        self._finalizer = weakref.finalize(self, self._pool.stop)
        self._supervisor = Supervisor(
            self._pool, RestartBudget(max_worker_restarts), on_env_error, self._start_limit
        )
        limits = self._step_limit, self._start_limit
        self._revival = Revival(
            self._pool, self._shared.obs, self._log, ranges, limits, self._tasks.now
        )
        self._supervisor.first_answers()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    @property
    def restarts(self) -> list[Restart]:
        """Workers that were started again, and why."""
        return self._supervisor.restarts

    @property
    def num_lost_rows(self) -> int:
        """How often a row lost its unfinished episode together with its worker."""
        return self._revival.num_lost_rows

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row; the result of a step under way is dropped."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._order.reset()
        self._finish_steps()
        self._shared.seeds[:] = seeds
        self._pool.post(RESET)
        self._collect(RESET, self._start_limit, self._revival.reset)
        self._tasks.now[:] = self._tasks.next
        self._log.begin(seeds)
        self._begin_to_log()
        self._revival.begin()
        for key, array in self._shared.obs.items():
            np.copyto(obs_out[key], array)
        self._hand_out(obs_out)
        return self._shared.arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Hand the actions ``[n, ...]`` to the workers, which begin to step."""
        checked = check_actions(actions, self._group_size, self.action_space)
        self._order.send(group)
        self._group_actions[group][...] = checked
        lost = self._revival.lost[group]
        self._pool.post(group, but_not_to=lost)
        for worker in lost:
            self._revival.send_step(worker, group)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Wait for the workers and copy the observations of the group."""
        self._order.recv(group)
        answers = self._collect(group, self._step_limit, self._revival.bring_back)
        self._order.received(group)
        for key, array in self._group_obs[group].items():
            np.copyto(obs_out[key], array)
        arrays = self._group_arrays[group]
        if self.num_tasks > 1:
            tasks = self._tasks.part(self._slices[group])
            np.copyto(tasks.now, tasks.next, where=arrays.starts)
        if self._keeps_log:
            self._log.record(group, self._group_actions[group], arrays.starts)
            self._revival.hand_out(group, obs_out)
        any_cut = any(answer.flags & FLAG_CUT for answer in answers)
        infos = self._infos(group, answers) if any(answer.payload for answer in answers) else []
        result = arrays.result(any_cut=any_cut, infos=infos)
        if self._revival.lost[group]:
            result.lost = self._revival.take_lost(group)
            self._warn_of_losses()
        return result

    def close(self) -> None:
        """Stop the workers; those that do not close their environments in time are killed."""
        self._order.close()
        self._finalizer()

    def _collect(self, command: int, limit: Limit, recover: RecoverFn) -> list[Answer]:
        """One answer per worker; `EnvError`, and all are closed, where some may not be started again."""
        try:
            while True:
                try:
                    return self._pool.collect(command, limit)
                except WorkersFailedError as failed:
                    self._supervisor.replace(failed.failures, recover)
        except EnvError:
            self.close()
            raise

    def _hand_out(self, obs: ObsArrays) -> None:
        for group, rows in enumerate(self._slices):
            self._revival.hand_out(group, {key: array[rows] for key, array in obs.items()})

    def _row_states(self) -> list[dict[str, Any]]:
        self._pool.post(GET_STATE)
        answers = self._collect(GET_STATE, self._start_limit, self._revival.recover_states)
        self._revival.check_none_lost()
        parts = [_result_of(answer) for answer in answers]
        groups = range(self.num_groups)
        return [state for group in groups for part in parts for state in part[group]]

    def _bring_all(self) -> ObsArrays:
        self._revival.begin()
        self._pool.expect(BRING_TO)
        for worker in range(self._pool.size):
            self._revival.send_places(worker)
        for answer in self._collect(BRING_TO, self._start_limit, self._revival.load):
            _result_of(answer)
        obs = {key: array.copy() for key, array in self._shared.obs.items()}
        self._hand_out(obs)
        return obs

    def _finish_steps(self) -> None:
        for group in self._pool.steps_under_way:
            self._collect(group, self._step_limit, self._revival.drop_steps)

    def _warn_of_losses(self) -> None:
        restarts, self._num_reported = self.restarts[self._num_reported :], len(self.restarts)
        for restart in restarts:
            if restart.outcome == "lost":
                rows = ", ".join(map(str, restart.failure.rows))
                warnings.warn(
                    f"the unfinished episodes of rows {rows} are lost and not counted, and fresh ones "
                    f"began: {restart.failure.message}\nIt was started again, but {restart.reason}",
                    MettaWarning,
                    stacklevel=3,
                )

    def _infos(self, group: int, answers: list[Answer]) -> list[tuple[int, dict[str, float]]]:
        return [
            (offset + row, numbers)
            for offset, answer in zip(self._offsets[group], answers, strict=True)
            if answer.payload
            for row, numbers in json.loads(answer.payload)
        ]


def _probe(factory: EnvFactory) -> tuple[RowSpec, int]:
    """What an environment looks like, and how many tasks it plays."""
    env = build_env(factory, 0)
    try:
        return row_spec_of(env), env.num_tasks if isinstance(env, TaskedEnv) else 1
    finally:
        env.close()


def _result_of(answer: Answer) -> Any:
    """The result of a worker; raises the error that it reported instead."""
    result = unpack(answer.payload)
    if isinstance(result, MettaError):
        raise result
    return result
