"""A run from start to saved result, for `metta train` and `metta resume`."""

import itertools
import re
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from metta.agent.policy import Policy
from metta.cli.commands.resume import place_of, resume_command
from metta.cli.final_replay import record_final_replay
from metta.cli.own_envs import remember_env
from metta.cli.plot import draw_learning_curve
from metta.cli.start_ranks import require_name_for_restarts, start_ranks
from metta.cli.tables import say
from metta.errors import ConfigError, MettaError
from metta.loggers.number_text import shown_number
from metta.replays.file import list_replays
from metta.rl.components.trainer import Trainer
from metta.rl.ranks import launched_ranks
from metta.runs.learning_curve import read_learning_curve
from metta.secrets import scrub
from metta.sim.statistics import estimate, mean_of_means
from metta.store.checkpoints.files import list_checkpoints
from metta.store.run_directory import RunDirectory
from metta.train.layers import PRESET_ORIGIN, Resolved
from metta.train.train_config import TrainingConfig

__all__ = ["new_run_dir", "train", "train_in"]

_MAX_NAME = 60
MAX_QUICK_BYTES = 32 * 2**20
"""Largest event log that is read in full when a signal stops training."""


def train(*, resolved: Resolved, output: Path, run: str | None, allow_inexact: bool = False) -> int:
    """Train in a new folder below `output`, or in that of `run`, in which training may continue."""
    rank, size = launched_ranks()
    if size > 1:
        require_name_for_restarts(run)
    if rank > 0:
        return _follow(resolved.config)
    folder = new_run_dir(output, resolved.config) if run is None else output / run
    start_ranks(resolved.config.trainer.system, *([] if run else ["--run", folder.name]))
    return train_in(folder, resolved.config, resolved.provenance(), allow_inexact=allow_inexact)


def train_in(  # noqa: PLR0913  # all but the first three by name
    folder: Path,
    config: TrainingConfig,
    provenance: Mapping[str, Any],
    *,
    allow_inexact: bool = False,
    policy: Policy | None = None,
    checkpoint_dir: str | None = None,
    replay_dir: str | None = None,
    changes: Collection[str] | None = None,
) -> int:
    """Train, score, save and draw; returns the exit code. `policy` is the one to begin with.

    Ctrl-C, SIGTERM and the end of the terminal stop training at the end of an epoch, and still save what
    was learned. If the folder holds a checkpoint, training continues from there; `changes` is that of
    `RunSession`.
    """
    start_ranks(config.trainer.system)
    if launched_ranks()[0] > 0:
        return _follow(config, policy)
    run = RunDirectory(folder)
    remember_env(folder, config.env)
    given = {"checkpoint_dir": checkpoint_dir, "replay_dir": replay_dir}
    checkpoints = checkpoint_dir or place_of(run, "checkpoint_dir", given)
    again = resume_command(run.path, given)
    before = list_checkpoints(checkpoints)
    trainer = Trainer(
        config,
        None,
        policy,
        run_dir=folder,
        provenance=provenance,
        allow_inexact=allow_inexact,
        checkpoint_dir=checkpoint_dir,
        replay_dir=replay_dir,
        changes=changes,
    )
    try:
        trainer.setup()
        total, seed = config.trainer.total_timesteps, config.trainer.seed
        origin = str(provenance["settings"]["trainer.curriculum.env"]["origin"])
        preset = f" with the {origin}" if origin.startswith(PRESET_ORIGIN) else ""
        say(f"training {config.env}{preset} for {total:,} steps in {folder} (seed {seed})")
        if trainer.session is not None and trainer.session.restore_support is not None:
            say(scrub(trainer.session.restore_support.describe()))
        if before:
            say(f"resumes from epoch {before[-1].epoch} ({before[-1].agent_step:,} steps)")
        trainer.train()
        if trainer.stop_signal is None:
            record_final_replay(trainer)
    except KeyboardInterrupt:
        if list_checkpoints(checkpoints):
            say(f"interrupted; continue with: {again}")
        raise
    finally:
        trainer.cleanup()
    stop_signal = _stop_signal_of(trainer)
    _report(trainer, run, config.env, again, is_stopped=stop_signal is not None)
    return 0 if stop_signal is None else 128 + stop_signal


def _stop_signal_of(trainer: Trainer) -> int | None:
    """The signal that stopped a run; once its goal is reached, one stops evaluations only."""
    state = trainer.state
    is_done = state.agent_step >= trainer.config.total_timesteps and not state.owes_scores
    return None if is_done else trainer.stop_signal


def _follow(config: TrainingConfig, policy: Policy | None = None) -> int:
    """Train as a rank that is not the first: without a folder, and without a word.

    The exit code of a run that was stopped is that of the first rank, which may still be writing.
    """
    with Trainer(config, None, policy) as trainer:
        trainer.train()
    return 0


def _report(trainer: Trainer, run: RunDirectory, env: str, again: str, *, is_stopped: bool) -> None:
    """Print the result and where it is saved."""
    state, episodes = trainer.state, trainer.evaluation_manager.episodes
    if is_stopped:
        say(f"stopped at {state.agent_step:,} steps ({state.stop_reason}); continue with: {again}")
    elif state.owes_scores:
        say(
            f"{state.agent_step:,} steps are done; collect the scores that are missing with: {again}"
        )
    elif episodes is not None:
        found = estimate(mean_of_means, [episodes.returns])
        mean, low, high = map(shown_number, (found.value, found.low, found.high))
        say(
            f"reached a mean return of {mean} (95 % interval {low} .. {high}) over {found.count} fresh "
            f"episodes after {state.agent_step:,} steps"
        )
    record = state.policies.latest_saved_policy_record
    if record is not None:
        say(f"the policy is in {record.uri.removeprefix('file://')}")
    say(f"settings, metrics and events are in {run.path}")
    replays = run.replay_dir if trainer.session is None else trainer.session.replay_dir
    if list_replays(replays):
        is_own = replays.is_relative_to(run.path)
        watched = shlex.join(["metta", "replay", str(run.path if is_own else replays)])
        say(f"watch what it does: {watched}")
    if is_stopped and run.events_file.stat().st_size > MAX_QUICK_BYTES:
        say("the learning curve is drawn when training is done: the event log is large")
        return
    try:
        curve = draw_learning_curve(
            run.curve_file, read_learning_curve(run.events_file), f"{run.name}: {env}"
        )
        say(f"drew the learning curve to {curve}")
    except MettaError as error:  # a missing extra, or an event log with a bad line
        say(f"no learning curve: {error}")


def _experiment(config: TrainingConfig) -> str:
    """The experiment's name; where none was chosen, its environment's: ``Acrobot-v1`` is acrobot_v1."""
    if config.experiment_name != TrainingConfig().experiment_name:
        return config.experiment_name
    env = re.sub(r"[^a-z0-9]+", "_", config.env.rpartition(":")[2].lower()).strip("_")
    return env[:_MAX_NAME] or config.experiment_name


def new_run_dir(output: Path, config: TrainingConfig) -> Path:
    """A new folder, also if two runs begin in the same second."""
    stem = f"{_experiment(config)}-seed{config.trainer.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--runs {str(output)!r} cannot be made: {error.strerror}") from error
    for number in itertools.count(1):
        run_dir = output / (stem if number == 1 else f"{stem}-{number}")
        try:
            run_dir.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"{str(run_dir)!r} cannot be made: {error.strerror}") from error
        break
    return run_dir
