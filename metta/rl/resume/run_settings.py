"""The settings of a run in its folder: written down, and compared with its checkpoint when it resumes."""

import json
import os
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from metta.errors import ConfigError, MettaWarning, UnsafeFileError
from metta.files import atomic_write_text
from metta.rl.resume.conditions import RunConditions
from metta.secrets import scrub_all
from metta.stateful import digest_of
from metta.store.checkpoints.files import Checkpoint
from metta.store.run_directory import RunDirectory
from metta.train.advice import FOR_RUNS
from metta.train.changes import Settings, check_changes, describe_changes, plain_settings
from metta.train.layers import RECIPE_ORIGIN, keep_origins, resolve
from metta.train.train_config import TrainingConfig
from metta.untrusted.json_files import read_json

__all__ = ["check_continuation", "own_parts", "recipe_of_run", "write_settings"]


def own_parts(about: Mapping[str, Any]) -> dict[str, Any]:
    """Which parts of a run are the user's own, and so not described by its settings."""
    return {key: about.get(key) for key in ("own_environment", "own_policy")}


def check_continuation(
    run: RunDirectory,
    conditions: RunConditions,
    checkpoint: Checkpoint,
    changes: Collection[str] | None,
) -> None:
    """Refuse another task, network or learning rule, before anything is written.

    `changes` are the settings that this call names, where all others were read from ``config.yaml``; None
    where the call names all of them.
    """
    where, wanted = str(run.path), conditions.settings
    state = checkpoint.snapshot.get(RunConditions.state_name, {}).get("state", {})
    saved: Settings = state.get("settings") or _settings_of_files(run)
    named = f"{wanted['trainer.curriculum.env']}, which the settings name"
    for key, what, other in (
        ("own_environment", "environment", named),
        ("own_policy", "network", "that of the settings"),
    ):
        if key in saved and saved[key] != wanted[key]:
            raise ConfigError(
                f"{where} holds a run with the {what} {saved[key] or 'of its settings'}, now it "
                f"is {wanted[key] or other}; resume it from Python with the same one"
            )
    if state.get("settings"):
        _check_config_file(run, saved, wanted, checkpoint.path.name, changes)
    check_changes(saved, wanted, where, FOR_RUNS)
    total, reached = wanted["trainer.total_timesteps"], checkpoint.agent_step
    if total != saved.get("trainer.total_timesteps", total) and total <= reached:
        raise ConfigError(
            f"nothing to do: {where} is at {reached:,} steps already, and "
            f"total_timesteps={total:,}; give a larger one"
        )
    if state:
        conditions.compare(state, where, FOR_RUNS)


def _settings_of_files(run: RunDirectory) -> Settings:
    """Settings from the files of a run whose checkpoints do not hold settings yet."""
    stored = run.about()
    settings = dict(own_parts(stored)) if stored else {}
    if run.config_file.exists():
        settings |= plain_settings(TrainingConfig.from_yaml(run.config_file))
    return settings


def _check_config_file(
    run: RunDirectory,
    saved: Settings,
    wanted: Settings,
    checkpoint: str,
    changes: Collection[str] | None,
) -> None:
    """Check that ``config.yaml`` agrees with the checkpoint, or with what metta wrote there since.

    Where the settings of this call were read from it, a difference is a `ConfigError`; otherwise it is
    about to be replaced, with a warning.
    """
    path = run.config_file
    try:
        found = plain_settings(TrainingConfig.from_yaml(path))
        edited = describe_changes(saved, found)
    except ConfigError as error:
        found, edited = {}, {"": str(error)}
    if not edited or digest_of(found) in _digests_vouched_for(run):
        return
    differences = "; ".join(edited.values())
    problem = f"{str(path)!r} is not as metta wrote it (compared with {checkpoint}): {differences}"
    if changes is not None and describe_changes(saved, wanted).keys() - set(changes):
        raise ConfigError(
            f"{problem}. Write the old values back, or run `metta resume` with --restore-settings, which "
            "takes them from the checkpoint; a setting that may change is given as NAME=VALUE"
        )
    warnings.warn(
        f"{problem}; it is replaced by the settings that this run resumes with",
        MettaWarning,
        stacklevel=2,
    )


def write_settings(
    run: RunDirectory,
    config: TrainingConfig,
    about: Mapping[str, Any],
    provenance: Mapping[str, Any] | None,
    *,
    resumes: bool,
) -> None:
    """Write ``run.json``, ``config.yaml`` and ``provenance.json``; a run that resumes keeps its origins."""
    provenance = provenance or resolve(config, check_sizes=False).provenance()
    if resumes:
        provenance = keep_origins(_stored_provenance(run), provenance)
    # run.json first: it vouches for the settings that follow, and still for those that they replace
    digests = {name: about[name] for name in ("id", "settings_sha256")}
    digests["settings_sha256_before"] = _digest_of_file(run)
    described = json.dumps({**scrub_all(about), **digests}, indent=2)
    atomic_write_text(run.about_file, described)
    config.to_yaml(run.config_file)
    atomic_write_text(run.provenance_file, json.dumps(scrub_all(provenance), indent=2))


def recipe_of_run(run: RunDirectory) -> dict[str, Any]:
    """Path -> value of the settings that a recipe set when the run began; {} for a new run."""
    settings = _stored_provenance(run).get("settings")
    known = settings if isinstance(settings, Mapping) else {}
    return {
        path: about["value"]
        for path, about in known.items()
        if isinstance(about, Mapping) and str(about.get("origin")).startswith(RECIPE_ORIGIN)
    }


def _digests_vouched_for(run: RunDirectory) -> list[Any]:
    """What ``config.yaml`` may hold: a run that was killed while it was set up has the old settings."""
    return [run.about().get(name) for name in ("settings_sha256", "settings_sha256_before")]


def _digest_of_file(run: RunDirectory) -> str | None:
    """Of the settings in ``config.yaml``; None where metta did not write them."""
    try:
        digest = digest_of(plain_settings(TrainingConfig.from_yaml(run.config_file)))
    except ConfigError:
        return None
    return digest if digest in _digests_vouched_for(run) else None


def _stored_provenance(run: RunDirectory) -> dict[str, Any]:
    """The origin of each value so far; {} if it is not known, with a warning if it is damaged."""
    path = run.provenance_file
    if not os.path.lexists(path):
        return {}
    try:
        found = read_json(path)
        if isinstance(found, dict):
            return found
        problem = f"{str(path)!r} is damaged: it holds a {type(found).__name__}"
    except UnsafeFileError as error:
        problem = str(error)
    warnings.warn(
        f"{problem}; its content is ignored, and it is written anew",
        MettaWarning,
        stacklevel=3,
    )
    return {}
