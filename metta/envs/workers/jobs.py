"""Which worker steps which rows, and what each must know to start."""

import os
from collections.abc import Sequence
from pathlib import Path

from metta.envs.rows.row_spec import EnvFactory, RowSpec
from metta.envs.vec_env import group_slices
from metta.envs.workers.worker import MAX_GROUPS, WorkerJob, pack_world
from metta.errors import ConfigError

__all__ = ["RowRanges", "worker_jobs", "worker_row_ranges"]

RowRanges = list[tuple[tuple[int, int], ...]]
"""For each worker, its rows (first, one past the last) of every group."""


def worker_row_ranges(num_rows: int, num_groups: int, num_workers: int) -> RowRanges:
    """Deal rows to workers; shares differ by at most one row."""
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


def worker_jobs(
    factories: Sequence[EnvFactory], spec: RowSpec, ranges: RowRanges
) -> list[WorkerJob]:
    """One job per worker, in the world that the trainer lives in now."""
    jobs = []
    for index, mine in enumerate(ranges):
        rows = [row for first, stop in mine for row in range(first, stop)]
        jobs.append(
            WorkerJob(
                index=index,
                num_rows=len(factories),
                row_ranges=mine,
                world=pack_world({row: factories[row] for row in rows}, spec),
                environ=dict(os.environ),
                directory=str(Path.cwd()),
            )
        )
    return jobs
