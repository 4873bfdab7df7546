"""Policies and runs by the names that commands take; `PolicyStore` says what a name may be."""

from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.own_envs import recall_env
from metta.cli.tables import say
from metta.errors import ConfigError, did_you_mean
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.agent.policy_record import PolicyRecord
    from metta.curriculum import Task
    from metta.store.policy_store import PolicyStore

__all__ = ["POLICY_HELP", "find_run", "run_and_epoch", "run_of", "say_choice", "training_task"]

POLICY_HELP = (
    "RUN (its best policy, or the latest if none has a score), RUN:best, RUN:latest, RUN:v120, or the path "
    "of a policy, checkpoint or run"
)


def say_choice(name: str, record: "PolicyRecord", store: "PolicyStore") -> None:
    """Say which policy a name without a choice means."""
    choice = store.choice_for(name, record)
    if choice:
        say(printable(choice))


def find_run(name: str, runs: Path) -> Path:
    """The folder of a run, given by path or by name."""
    folder = _run_named(name, runs)
    if folder is not None:
        return folder
    known = [path.parent.name for path in sorted(runs.glob("*/config.yaml"))]
    raise ConfigError(
        f"there is no run {name!r}: neither {name!r} nor {str(runs / name)!r} holds a config.yaml"
        f"{did_you_mean(name, known)}; `metta runs` lists them"
    )


def _run_named(name: str, runs: Path) -> Path | None:
    for folder in (Path(name), runs / name):
        if (folder / "config.yaml").is_file():
            return folder
    return None


def run_and_epoch(name: str, runs: Path) -> tuple[Path, int | None]:
    """A run, and the epoch of the policy that was chosen; None if the run as a whole was named."""
    folder = _run_named(name, runs)
    if folder is not None:
        return folder, None
    if ":" not in name and not Path(name).exists():
        return find_run(name, runs), None  # its error says that there is no such run
    from metta.store.policy_store import PolicyStore
    from metta.untrusted.paths import path_of

    record = PolicyStore(runs).find(name)
    folder = run_of(path_of(record.uri))
    if folder is None:
        raise ConfigError(
            f"the policy {name!r} is in no run: no folder around it has a config.yaml"
        )
    return folder, record.epoch


def run_of(path: Path) -> Path | None:
    """The run that a policy is in; None if no folder around it has a ``config.yaml``."""
    from metta.store.run_directory import run_around

    return run_around(path)


def training_task(record: "PolicyRecord") -> "Task | None":
    """The first task of the run that a policy is in; None if its settings name no id."""
    from metta.curriculum import Curriculum
    from metta.store.run_directory import RunDirectory
    from metta.train.train_config import TrainingConfig
    from metta.untrusted.paths import path_of

    folder = run_of(path_of(record.uri))
    if folder is None:
        return None
    run = RunDirectory(folder)
    if run.about().get("own_environment"):
        return None
    config = TrainingConfig.from_yaml(run.config_file)
    recall_env(folder, config.env)
    return Curriculum(config.trainer.curriculum).task
