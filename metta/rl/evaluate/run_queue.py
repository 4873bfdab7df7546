"""The queue of a run: where it is, and what cannot be evaluated through it, which is refused at once."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.agent.policy import Policy
from metta.errors import ConfigError
from metta.rl.evaluate.described import asked_by, envs_of_workers, require_built_in
from metta.rl.evaluate.queued import QueuedEvaluation, QueuePlace
from metta.train.run_config import EvaluationConfig

__all__ = ["QueuedRun", "open_queue"]

_URL_VARIABLE = "METTA_STATS_URL"
_FILE = "stats.db"
"""In the folder of runs, as for `metta stats` and `metta worker`."""


@dataclass(frozen=True)
class QueuedRun:
    """The run whose policies are evaluated."""

    id: str
    folder: Path
    checkpoint_dir: Path
    replay_dir: Path
    is_saved: bool
    """Whether it has checkpoints, beside which policies can wait."""


def open_queue(
    config: EvaluationConfig, evaluator: Any, policy: Policy, run: QueuedRun
) -> QueuedEvaluation | None:
    """Evaluations through a queue, ready to take policies; None if the settings do not ask for it.

    Whatever could not be evaluated there, or not be collected by a resumed run, is a `ConfigError`.
    """
    where = config.where
    if where not in ("queue", "ray") or config.eval_episodes == 0:
        return None
    require_built_in(policy, asked_by(where))
    if not run.is_saved:
        raise ConfigError(
            f"evaluation.where={where!r} keeps policies beside checkpoints until they are scored, and this "
            "run makes none; set checkpoint_interval, e.g. to 50, or use evaluation.where=process"
        )
    if config.replay_interval > 0:
        _require_inside(run, where)
    place = _place_of(config, run, envs_of_workers([evaluator]))
    queued = QueuedEvaluation(evaluator, place)
    queued.start()
    return queued


def _require_inside(run: QueuedRun, where: str) -> None:
    """Workers write replays only into the run whose policy they play."""
    for name, folder in (("replay_dir", run.replay_dir), ("checkpoint_dir", run.checkpoint_dir)):
        if not folder.resolve().is_relative_to(run.folder.resolve()):
            raise ConfigError(
                f"evaluation.where={where!r} records replays only where policy and replay are inside of "
                f"the run {str(run.folder)!r}, and {name} is {str(folder)!r}; leave {name} out, or set "
                "replay_interval=0 or evaluation.where=process"
            )


def _place_of(config: EvaluationConfig, run: QueuedRun, envs: str) -> QueuePlace:
    """`envs` are options of workers, as `envs_of_workers` gives them."""
    runs, named = run.folder.parent, config.database
    if named is not None:
        is_file = "://" not in named and not named.startswith("env:")
        database = str(Path(named).absolute()) if is_file else named
        command = f"metta worker --database {shlex.quote(named)}{envs}"
    elif found := os.environ.get(_URL_VARIABLE):
        database, command = found, f"metta worker{envs}, where {_URL_VARIABLE} is set as it is here"
    else:
        database = str(runs / _FILE)
        command = f"metta worker --runs {shlex.quote(_short(runs))}{envs}"
    ray = None
    if config.where == "ray":
        ray = {"address": config.ray_address, "num_workers": config.num_ray_workers}
    advice = f"start one with: {command}"
    if ray is not None:
        advice = "those on Ray are being started, or wait for free processors"
    return QueuePlace(run.id, database, advice, ray)


def _short(folder: Path) -> str:
    """Relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
