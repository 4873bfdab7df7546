"""`metta profile`: how a run spends its time."""

import argparse
import dataclasses
import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.arguments import resolve_arguments, sort_arguments
from metta.cli.options import add_checkpoint_dir, add_out, add_runs
from metta.cli.own_envs import recall_env
from metta.cli.tables import say, table
from metta.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import Resolved
    from metta.train.train_config import TrainingConfig

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains a few epochs in a temporary folder and shows where time is spent: environment, inference, "
        "transfer (copies, values, statistics), learning, hooks; of several ranks also reduce, and of "
        "collecting elsewhere collect (while this process waited), wait and transfer. Writes a flame graph "
        "of the stacks and a trace of torch's operations, of the first rank. If you name a run, it is only "
        "read."
    )
    parser.epilog = "metta profile cartpole num_envs=64 --epochs 10 -o where"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN|PRESET|FILE|NAME=VALUE",
        help="a run, or what `metta train` takes (default: grid)",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, help="epochs to time, and to sample (default: %(default)s)"
    )
    parser.add_argument(
        "--warmup", type=int, default=2, help="epochs before that (default: %(default)s)"
    )
    add_out(
        parser,
        "folder of flame.svg, stacks.folded, trace.json and phases.json (default: %(default)s)",
        metavar="DIR",
        default="profile",
    )
    add_runs(parser, writes="file")
    add_checkpoint_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Profile, and print the table."""
    if options.epochs < 1 or options.warmup < 1:
        raise ConfigError("profile needs at least --epochs 1 and --warmup 1")
    folder = Path(options.out)
    if any(folder.glob("*/config.yaml")):
        raise ConfigError(
            f"--output {str(folder)!r} holds runs; choose another. Where runs are is --runs"
        )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would print into the table
    resolved = _resolve(options.words, Path(options.runs), options.checkpoint_dir)
    from metta.cli.start_ranks import start_ranks
    from metta.rl.ranks import launched_ranks

    start_ranks(resolved.config.trainer.system)
    from metta.files import atomic_write_text
    from metta.profiling.profile_run import follow_profile, profile_run  # torch loads here

    if launched_ranks()[0] > 0:
        follow_profile(resolved.config, epochs=options.epochs, warmup=options.warmup)
        return 0
    profile = profile_run(
        resolved.config,
        folder,
        epochs=options.epochs,
        warmup=options.warmup,
        provenance=resolved.provenance(),
    )
    numbers = {**vars(profile), "shares": profile.shares}
    atomic_write_text(folder / "phases.json", json.dumps(numbers, indent=2))
    say(table(profile.rows()))
    say(profile.describe())
    say(f"flame graph, stacks and trace are in {folder}")
    return 0


def _resolve(words: list[str], output: Path, checkpoint_dir: str | None) -> "Resolved":
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import resolve
    from metta.train.presets import PRESETS

    name, files, settings = sort_arguments(words)
    if name is not None and name not in PRESETS:
        for folder in (Path(name), output / name):
            if (folder / "config.yaml").is_file():
                run = RunDirectory(folder)
                _require_settings_only(run)
                resolved = resolve(None, [run.config_file, *files], settings, check_sizes=False)
                recall_env(folder, resolved.config.env)
                saved = Path(checkpoint_dir or run.place("checkpoint_dir", partial(_again, words)))
                return dataclasses.replace(resolved, config=_as_saved(resolved.config, saved))
    return resolve_arguments(words)


def _again(words: list[str], checkpoint_dir: str) -> str:
    return shlex.join(["metta", "profile", *words, "--checkpoint-dir", checkpoint_dir])


def _as_saved(config: "TrainingConfig", checkpoint_dir: Path) -> "TrainingConfig":
    """The configuration with the threads and the driver that a resumed run takes from its checkpoint."""
    from metta.rl.resume.conditions import RunConditions
    from metta.store.checkpoints.files import read_newest_checkpoint
    from metta.train.settings import apply_settings

    checkpoint = read_newest_checkpoint(checkpoint_dir)
    if checkpoint is None or RunConditions.state_name not in checkpoint.snapshot:
        return config
    numerics = config.trainer.numerics
    is_open = {"threads": numerics.threads == 0, "driver": numerics.driver == "auto"}
    try:
        saved = checkpoint.snapshot[RunConditions.state_name]["state"]["plan"]
        taken = {
            f"trainer.numerics.{name}": saved[name] for name, is_it in is_open.items() if is_it
        }
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{str(checkpoint.path)!r} does not hold how its numbers were computed"
        ) from error
    return apply_settings(config, taken)


def _require_settings_only(run: "RunDirectory") -> None:
    """Refuse a run whose network or environment is not described by its settings."""
    about = run.about()
    for key, what in (("own_environment", "environment"), ("own_policy", "network")):
        if about.get(key):
            raise ConfigError(
                f"the run {str(run.path)!r} has the {what} {about[key]}, which its settings cannot make; "
                "profile it from Python: metta.profiling.PhaseTimer and StackSampler"
            )
