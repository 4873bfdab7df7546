"""Environments in worker processes, with observations in shared memory."""

import json
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.row_spec import EnvFactory, RowSpec, build_env, row_spec_of
from metta.envs.shared_rows import SharedRows, allocate_block
from metta.envs.vec_env import ObsArrays, StepResult, group_slices
from metta.envs.worker import FLAG_CUT, MAX_GROUPS, READY, RESET, WorkerJob, pack_world
from metta.envs.worker_pool import Answer, WorkerPool, worker_context
from metta.errors import ConfigError, EnvError
from metta.train.train_config import RolloutConfig

__all__ = ["MultiprocessVecEnv"]

_DEFAULTS = RolloutConfig()


class MultiprocessVecEnv:
    """A `VecEnv` whose rows are stepped by worker processes; equal to `SerialVecEnv` to the bit.

        envs = MultiprocessVecEnv([make_env] * 16, num_workers=4, num_groups=2)
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs_of_group)
        envs.close()

    Every worker has rows of every group. A failing environment, a dead worker and a step (or an
    autoreset) longer than `step_timeout_seconds` stop all workers and raise `EnvError`;
    `start_timeout_seconds` bounds making environments and `reset`. One environment is made and closed
    in this process to read the spaces.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        num_workers: int,
        num_groups: int = 1,
        *,
        step_timeout_seconds: float = _DEFAULTS.step_timeout_seconds,
        start_timeout_seconds: float = _DEFAULTS.start_timeout_seconds,
    ) -> None:
        ranges = worker_row_ranges(len(factories), num_groups, num_workers)
        self._step_timeout = step_timeout_seconds
        self._start_timeout = start_timeout_seconds
        spec = _probe(factories[0])
        self.observation_space = spec.observation_space
        self.action_space = spec.action_space
        self.obs_spec = spec.obs_spec
        self.num_rows = len(factories)
        self.num_groups = num_groups
        self.mask_size = spec.mask_size
        self._order = CallOrder(num_groups)
        self._slices = group_slices(self.num_rows, num_groups)
        self._group_size = self.num_rows // num_groups
        # where a worker's rows begin inside their group
        self._offsets = [
            [mine[group][0] - rows.start for mine in ranges]
            for group, rows in enumerate(self._slices)
        ]
        context = worker_context()
        block = allocate_block(context, spec, self.num_rows)
        self._shared = SharedRows.over(block, spec, self.num_rows)
        self._group_arrays = [self._shared.arrays.part(rows) for rows in self._slices]
        self._group_obs = [
            {key: array[rows] for key, array in self._shared.obs.items()} for rows in self._slices
        ]
        jobs = [_job(index, factories, spec, mine) for index, mine in enumerate(ranges)]
        self._pool = WorkerPool(context, jobs, block)
        self._finalizer = weakref.finalize(self, self._pool.stop)
        self._pool.collect(READY, start_timeout_seconds, "start_timeout_seconds")

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row; the result of a step under way is dropped."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        for group in self._order.reset():
            self._collect(group, self._step_timeout, "step_timeout_seconds")
        self._shared.seeds[:] = seeds
        self._post(RESET)
        self._collect(RESET, self._start_timeout, "start_timeout_seconds")
        for key, array in self._shared.obs.items():
            np.copyto(obs_out[key], array)
        return self._shared.arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Hand the actions ``[n, ...]`` to the workers, which begin to step."""
        checked = check_actions(actions, self._group_size, self.action_space)
        self._order.send(group)
        self._shared.actions[self._slices[group]] = checked
        self._post(group)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Wait for the workers and copy the observations of the group."""
        self._order.recv(group)
        answers = self._collect(group, self._step_timeout, "step_timeout_seconds")
        self._order.received(group)
        for key, array in self._group_obs[group].items():
            np.copyto(obs_out[key], array)
        any_cut = any(answer.flags & FLAG_CUT for answer in answers)
        infos = self._infos(group, answers) if any(answer.payload for answer in answers) else []
        return self._group_arrays[group].result(any_cut=any_cut, infos=infos)

    def close(self) -> None:
        """Stop the workers; those that do not close their environments in time are killed."""
        self._order.close()
        self._finalizer()

    def _post(self, command: int) -> None:
        try:
            self._pool.post(command)
        except EnvError:
            self.close()
            raise

    def _collect(self, command: int, timeout_seconds: float, setting: str) -> list[Answer]:
        try:
            return self._pool.collect(command, timeout_seconds, setting)
        except EnvError:
            self.close()
            raise

    def _infos(self, group: int, answers: list[Answer]) -> list[tuple[int, dict[str, float]]]:
        return [
            (offset + row, numbers)
            for offset, answer in zip(self._offsets[group], answers, strict=True)
            if answer.payload
            for row, numbers in json.loads(answer.payload)
        ]


def worker_row_ranges(
    num_rows: int, num_groups: int, num_workers: int
) -> list[tuple[tuple[int, int], ...]]:
    """For each worker, its rows (first, one past the last) of every group; sizes differ by at most one."""
    slices = group_slices(num_rows, num_groups)
    group_size = num_rows // num_groups
    if not 1 <= num_workers <= group_size:
        raise ConfigError(
            f"num_workers={num_workers} does not suit {num_rows} environments in {num_groups} groups "
            f"of {group_size}: every worker needs a row of every group; try num_workers="
            f"{max(1, min(num_workers, group_size))} or num_envs={num_groups * max(1, num_workers)}"
        )
    if num_groups > MAX_GROUPS:
        raise ConfigError(f"num_groups={num_groups} is too many; at most {MAX_GROUPS} are possible")
    return [
        tuple(
            (
                rows.start + worker * group_size // num_workers,
                rows.start + (worker + 1) * group_size // num_workers,
            )
            for rows in slices
        )
        for worker in range(num_workers)
    ]


def _probe(factory: EnvFactory) -> RowSpec:
    env = build_env(factory, 0)
    try:
        return row_spec_of(env)
    finally:
        env.close()


def _job(
    index: int,
    factories: Sequence[EnvFactory],
    spec: RowSpec,
    row_ranges: tuple[tuple[int, int], ...],
) -> WorkerJob:
    mine = {row: factories[row] for first, stop in row_ranges for row in range(first, stop)}
    return WorkerJob(
        index=index,
        num_rows=len(factories),
        row_ranges=row_ranges,
        world=pack_world(mine, spec),
        environ=dict(os.environ),
        directory=str(Path.cwd()),
    )
