"""Applies settings by any usual name to a configuration: the one alias table."""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from metta.errors import did_you_mean
from metta.train.foreign_names import AS_HERE, Translation, advice_for, translate
from metta.train.parsing.origins import Origin
from metta.train.parsing.problems import Problem, as_error, explain, shown
from metta.train.parsing.schema import (
    Leaf,
    given_paths,
    groups_of,
    leaves_of,
    mark_given,
    setting_values,
)
from metta.train.parsing.values import is_nothing, read_value
from metta.train.train_config import TrainingConfig

__all__ = [
    "ALIASES",
    "Entry",
    "apply_settings",
    "build_config",
    "entries_of",
    "given_paths",
    "group_path",
    "leaf_at",
    "paths_set_by",
    "place_entries",
    "setting_paths",
    "setting_values",
    "unknown_setting",
]

ALIASES: dict[str, str] = {
    "lr": "trainer.optimizer.learning_rate",
    "lr_schedule": "trainer.optimizer.schedule",
    "lr_schedule_end": "trainer.optimizer.schedule_end",
    "optimizer_name": "trainer.optimizer.name",
    "optimizer.type": "trainer.optimizer.name",
    "adam_eps": "trainer.optimizer.eps",
    "n_epochs": "trainer.ppo.update_epochs",
    "num_epochs": "trainer.ppo.update_epochs",
    "num_sgd_iter": "trainer.ppo.update_epochs",
    "clip_range": "trainer.ppo.clip_coef",
    "clip_epsilon": "trainer.ppo.clip_coef",
    "clip_param": "trainer.ppo.clip_coef",
    "clip_range_vf": "trainer.ppo.vf_clip_coef",
    "value_coef": "trainer.ppo.vf_coef",
    "value_loss_coef": "trainer.ppo.vf_coef",
    "vf_loss_coeff": "trainer.ppo.vf_coef",
    "entropy_coef": "trainer.ppo.ent_coef",
    "entropy_coeff": "trainer.ppo.ent_coef",
    "discount": "trainer.ppo.gamma",
    "lambda": "trainer.ppo.gae_lambda",
    "lambda_": "trainer.ppo.gae_lambda",
    "vf_clip_param": "trainer.ppo.vf_clip_coef",
    "num_env_runners": "trainer.rollout.num_workers",
    "fcnet_activation": "agent.activation",
    "wandb_project_name": "trainer.logging.wandb.project",
    "wandb_entity": "trainer.logging.wandb.entity",
    "gradient_clip": "trainer.ppo.max_grad_norm",
    "grad_clip": "trainer.ppo.max_grad_norm",
    "batch_size": "trainer.ppo.minibatch_size",
    "sgd_minibatch_size": "trainer.ppo.minibatch_size",
    "normalize_advantage": "trainer.ppo.normalize_advantages",
    "norm_adv": "trainer.ppo.normalize_advantages",
    "n_steps": "trainer.rollout.horizon",
    "num_steps": "trainer.rollout.horizon",
    "rollout_fragment_length": "trainer.rollout.horizon",
    "n_envs": "trainer.rollout.num_envs",
    "agent_name": "agent.name",
    "normalize_obs": "agent.normalize_observations",
    "norm_obs": "agent.normalize_observations",
    "total_steps": "trainer.total_timesteps",
    "env_id": "trainer.curriculum.env",
    "env_name": "trainer.curriculum.env",
    "env.id": "trainer.curriculum.env",
    "env.kwargs": "trainer.curriculum.env_kwargs",
    "env.wrappers": "trainer.curriculum.wrappers",
    "exp_name": "experiment_name",
}
"""Other spelling -> path. Every field also goes by its path, and by its own name if that is unique."""


_MAX_HINTS = 50
"""More unknown names than these get no hint: the file is of another kind, and hints take time."""


class Entry(NamedTuple):
    """A setting as it was written."""

    name: str
    value: Any
    origin: Origin | None


class _Names(NamedTuple):
    leaves: Mapping[str, str]
    """Every spelling of a setting -> its path."""
    groups: Mapping[str, str]
    """Every spelling of a group, e.g. ``ppo`` -> its path."""
    ambiguous: Mapping[str, list[str]]
    """Names that several settings have."""


@functools.cache
def _names() -> _Names:
    """Each setting by its own name or an alias, optionally with the groups above it in front."""
    own: dict[str, list[str]] = {}
    for path in leaves_of(TrainingConfig):
        own.setdefault(path.rpartition(".")[2], []).append(path)
    ambiguous = {name: paths for name, paths in own.items() if len(paths) > 1}
    leaves = {path: path for path in leaves_of(TrainingConfig)}
    spellings = [(path.rpartition(".")[2], path) for path in leaves] + list(ALIASES.items())
    for name, path in spellings:
        parents = path.split(".")[:-1]
        for chosen in _subsequences(parents):
            # a name that occurs in several groups needs its group in front
            if name not in ambiguous or chosen[-1:] == tuple(parents[-1:]):
                leaves.setdefault(".".join([*chosen, name]), path)
    groups: dict[str, str] = {}
    for path in groups_of(TrainingConfig):
        *parents, name = path.split(".")
        groups |= {".".join([*chosen, name]): path for chosen in _subsequences(parents)}
    return _Names(leaves, groups, ambiguous)


def _subsequences(parts: list[str]) -> Iterable[tuple[str, ...]]:
    lengths = range(len(parts) + 1)
    return itertools.chain.from_iterable(itertools.combinations(parts, n) for n in lengths)


def setting_paths() -> dict[str, str]:
    """Every name under which a setting is known, with the path of its field."""
    return dict(_names().leaves)


def group_path(name: str) -> str | None:
    """The path of a group of settings by any of its names; ``""`` is the whole."""
    return name if not name else _names().groups.get(name)


def paths_set_by(settings: Mapping[str, Any]) -> set[str]:
    """Paths of the settings that a mapping names."""
    names = _names().leaves
    return {names[entry.name] for entry in entries_of(settings) if entry.name in names}


def entries_of(settings: Mapping[str, Any], origin: Origin | None = None) -> list[Entry]:
    """The settings in a mapping, nested or flat, each by its dotted name as it was spelt."""
    groups, parents = _names().groups, _parents()
    entries: list[Entry] = []

    def walk(mapping: Mapping[str, Any], prefix: str) -> None:
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            is_group = name in groups or (name in parents and isinstance(value, Mapping))
            if is_group and dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = {
                    field.name: getattr(value, field.name) for field in dataclasses.fields(value)
                }
            if is_group and isinstance(value, Mapping):
                walk(value, f"{name}.")
            elif not (is_group and is_nothing(value)):
                entries.append(Entry(name, value, origin and origin.at(key)))

    walk(settings, "")
    return entries


@functools.cache
def _parents() -> frozenset[str]:
    """What may be written as a mapping: groups, and ``env`` with its id, kwargs and wrappers."""
    return frozenset(name.rpartition(".")[0] for name in _names().leaves)


def place_entries(entries: Iterable[Entry], problems: list[Problem]) -> dict[str, Entry]:
    """Path -> entry with its value read; what cannot be placed becomes a problem."""
    placed: dict[str, Entry] = {}
    for entry in entries:
        path, value = _names().leaves.get(entry.name), entry.value
        foreign = translate(entry.name, value) if path is None else None
        advice = foreign if path is None else advice_for(path, value)
        if advice == AS_HERE:
            continue
        if isinstance(advice, Translation):
            path, value = advice
        elif isinstance(advice, str):
            problems.append(Problem(f"{advice}{_place(entry.origin)}", (path,) if path else ()))
            continue
        if path is None:
            problems.append(unknown_setting(entry, with_hint=len(problems) < _MAX_HINTS))
            continue
        if path in placed:
            problems.append(_twice(placed[path], entry, path))
        placed[path] = entry._replace(value=read_value(leaf_at(path), value))
    return placed


def leaf_at(path: str) -> Leaf:
    """The setting at a path."""
    return leaves_of(TrainingConfig)[path]


def _place(origin: Origin | None) -> str:
    return "" if origin is None else f" ({origin})"


def _twice(first: Entry, second: Entry, path: str) -> Problem:
    places = {str(entry.origin): None for entry in (first, second) if entry.origin is not None}
    where = f" ({' and '.join(places)})" if places else ""
    text = f"{first.name!r} and {second.name!r} both set {path}{where}; give one of them"
    return Problem(text, (path,))


def unknown_setting(entry: Entry, *, with_hint: bool = True) -> Problem:
    """The problem of a name that is not a setting."""
    name, names = entry.name, _names()
    place = _place(entry.origin)
    if name in names.groups:
        text = f"{names.groups[name]}{place}: found {shown(entry.value)}; allowed is a group of settings"
        return Problem(text)
    if name in names.ambiguous:
        several = " or ".join(repr(path) for path in names.ambiguous[name])
        return Problem(f"ambiguous setting {shown(name)}{place}; write which: {several}")
    return Problem(f"unknown setting {shown(name)}{place}{_hint(name) if with_hint else ''}")


def _hint(name: str) -> str:
    """Where a name may belong: among its siblings first, then anywhere."""
    names = _names()
    group, _, last = name.rpartition(".")
    hint = did_you_mean(last, _below(group)) if group in names.groups else ""
    if hint or not group:
        return hint or did_you_mean(last, _below("")) or _as_argument(last)
    if last in names.leaves:
        return f"; it exists at {names.leaves[last]}"
    if last in names.ambiguous:
        return f"; it exists at {' and '.join(names.ambiguous[last])}"
    return did_you_mean(last, _below(""))


def _as_argument(name: str) -> str:
    return f"; an argument of the environment is written env_kwargs={{'{name}': ...}}"


@functools.cache
def _below(group: str) -> list[str]:
    """What a group may hold, by all of its names; the group without a name is the whole."""
    names = _names()
    spellings = [known.rpartition(".") for known in [*names.leaves, *names.groups]]
    return [last for above, _, last in spellings if above == group]


@functools.cache
def _validator() -> TypeAdapter[TrainingConfig]:
    return TypeAdapter(TrainingConfig)


def build_config(
    values: Mapping[str, Any],
    origins: Mapping[str, Origin] | None = None,
    problems: Iterable[Problem] = (),
    *,
    given: Collection[str],
) -> TrainingConfig:
    """A configuration from values by path; all `problems`, and those found here, are one error.

    The paths in `given` count as chosen; recipes leave them alone.
    """
    found = list(problems)
    try:
        config = _validator().validate_python(_nested(values))
    except ValidationError as error:
        wrong = explain(error, TrainingConfig, origins)
        found += wrong + _rules_beside(values, wrong, origins)
    if found:
        raise as_error(found)
    _mark(config, given, "")
    return config


def _mark(config: Any, given: Collection[str], prefix: str) -> None:
    names = [field.name for field in dataclasses.fields(config)]
    mark_given(config, [name for name in names if f"{prefix}{name}" in given])
    for name in names:
        if dataclasses.is_dataclass(below := getattr(config, name)):
            _mark(below, given, f"{prefix}{name}.")


def _rules_beside(
    values: Mapping[str, Any], wrong: list[Problem], origins: Mapping[str, Origin] | None
) -> list[Problem]:
    """Broken rules over several settings that are each legal alone."""
    paths = {path for problem in wrong for path in problem.paths}
    defaults = {path: leaf.default for path, leaf in leaves_of(TrainingConfig).items()}
    mended = {path: defaults[path] if path in paths else value for path, value in values.items()}
    try:
        _validator().validate_python(_nested(mended))
    except ValidationError as error:
        others = explain(error, TrainingConfig, origins)
        return [problem for problem in others if not paths & set(problem.paths)]
    return []


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, leaf = path.split(".")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return nested


def apply_settings(base: TrainingConfig, settings: Mapping[str, Any]) -> TrainingConfig:
    """`base` with `settings` applied; all problems are in one `ConfigError`.

    apply_settings(TrainingConfig(), {"learning_rate": 1e-3, "n_steps": 64})
    """
    problems: list[Problem] = []
    placed = place_entries(entries_of(settings), problems)
    values = setting_values(base) | {path: entry.value for path, entry in placed.items()}
    return build_config(values, None, problems, given=given_paths(base) | placed.keys())
