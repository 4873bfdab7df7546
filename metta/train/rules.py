"""Rules beyond single ranges: sizes that must divide each other, and secrets that must not be written."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from metta.errors import ConfigError
from metta.secret_names import looks_secret
from metta.secrets import exposure
from metta.train.batch_sizing import check_minibatch_size, nearest_divisors
from metta.train.parsing.problems import BrokenRule

if TYPE_CHECKING:
    from metta.train.train_config import RolloutConfig, TrainerConfig, TrainingConfig

__all__ = [
    "collect_rules",
    "group_rules",
    "is_recurrent",
    "secret_rules",
    "shard_rules",
    "size_rules",
]

_RECURRENT = ("lstm", "gru")
_MAX_BATCH = 10**12
_MAX_DEPTH = 32
_RESOLVED = ("database",)
"""Settings besides mappings that may be references, ``env:NAME``."""


def group_rules(rollout: "RolloutConfig") -> list[BrokenRule]:
    """Whether environments split into equal groups; paths are those below a trainer."""
    envs, groups = rollout.num_envs, rollout.num_groups
    if envs % groups == 0:
        return []
    legal = groups * max(1, round(envs / groups))
    text = f"num_envs={envs} does not split into num_groups={groups} equal groups; try num_envs={legal}"
    return [BrokenRule(("rollout.num_envs", "rollout.num_groups"), text)]


def collect_rules(trainer: "TrainerConfig") -> list[BrokenRule]:
    """Whether there is a shard for every actor, and whether the other settings of collecting fit."""
    collect, shards = trainer.collect, trainer.rollout.num_shards
    own, found = shards // trainer.system.num_processes, []
    if collect.num_actors > max(1, own):
        text = (
            f"num_actors={collect.num_actors} have only {own} shards to collect for each process that "
            f"learns; try num_shards={collect.num_actors * trainer.system.num_processes}"
        )
        found.append(BrokenRule(("collect.num_actors", "rollout.num_shards"), text))
    if collect.address is not None and collect.kind != "ray":
        text = f"address={collect.address!r} is that of a Ray cluster; add collect.kind=ray"
        found.append(BrokenRule(("collect.address", "collect.kind"), text))
    if collect.num_actors and collect.kind == "here":
        text = f"num_actors={collect.num_actors} needs collect.kind=process or collect.kind=ray"
        found.append(BrokenRule(("collect.num_actors", "collect.kind"), text))
    if collect.overlap and trainer.checkpoint.env_restore == "sync_reset":
        text = (
            "overlap=true begins the next rollout before a checkpoint could end its episodes; use another "
            "env_restore than sync_reset"
        )
        found.append(BrokenRule(("collect.overlap", "checkpoint.env_restore"), text))
    return found


def shard_rules(trainer: "TrainerConfig") -> list[BrokenRule]:
    """Whether environments, workers and minibatches split into shards."""
    rollout, ppo, shards = trainer.rollout, trainer.ppo, trainer.rollout.num_shards
    counts = {"rollout.num_envs": rollout.num_envs, "rollout.num_workers": rollout.num_workers,
              "ppo.minibatch_size": ppo.minibatch_size or 0}  # fmt: skip
    found = []
    for path, count in counts.items():
        if count % shards:
            legal = shards * max(1, round(count / shards))
            name = path.rpartition(".")[2]
            text = f"{name}={count} does not split into num_shards={shards} equal parts; try {name}={legal}"
            found.append(BrokenRule((path, "rollout.num_shards"), text))
    processes = trainer.system.num_processes
    if shards % processes:
        text = (
            f"num_processes={processes} processes cannot share out num_shards={shards}; try "
            f"num_shards={processes * max(1, round(shards / processes))}"
        )
        found.append(BrokenRule(("system.num_processes", "rollout.num_shards"), text))
    groups = rollout.num_groups
    if shards > 1 and not found and (rollout.num_envs // shards) % groups:
        text = (
            f"each of {shards} shards has {rollout.num_envs // shards} environments, which do not split "
            f"into num_groups={groups}; try num_envs={shards * groups}"
        )
        found.append(BrokenRule(("rollout.num_groups", "rollout.num_shards"), text))
    if shards > 1 and trainer.numerics.driver == "step":
        text = "driver=step compiles updates of one shard only; use driver=auto, or num_shards=1"
        found.append(BrokenRule(("numerics.driver", "rollout.num_shards"), text))
    return found


def secret_rules(config: Any) -> list[BrokenRule]:
    """Texts in a configuration's own fields that must not be written to a file."""
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        advice = "give env:NAME, and set the environment variable NAME where metta is started"
        if not isinstance(value, Mapping) and field.name not in _RESOLVED:
            advice = "leave that part out"
        for place, why in _exposed(value, ""):
            what = repr(place) if place else "the value"
            text = f"{what} {why}, and settings are written to files; {advice}"
            found.append(BrokenRule((field.name,), text))
    return found


def _exposed(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Where a setting holds something to hide, and why; mappings may contain themselves."""
    if isinstance(value, str | bytes):
        why = exposure(place, value if isinstance(value, str) else value.decode(errors="replace"))
        if why:
            yield place, why
    elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for name, part in value.items():
            # everything below a secret name is secret, whatever its own name is
            below = place if looks_secret(place) else f"{place}.{name}" if place else str(name)
            yield from _exposed(part, below, depth + 1)
    elif isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        for part in value:
            yield from _exposed(part, place, depth + 1)


def is_recurrent(config: "TrainingConfig") -> bool:
    """Whether the agent that `config` describes has a recurrent core."""
    return config.agent.core != "none" or config.agent.name in _RECURRENT


def size_rules(config: "TrainingConfig") -> list[BrokenRule]:
    """Sizes that do not fit, for an environment by id (one row each) and the configured agent.

    Your own environment or policy object may have other rows or no core, so these rules are not part of
    the configuration itself.
    """
    if config.trainer.rollout.auto_batch:  # most sizes are not chosen yet
        return []
    return (
        _extent_rules(config)
        or _segment_rules(config)
        or [*_minibatch_rules(config), *_worker_rules(config)]
    )


def _extent_rules(config: "TrainingConfig") -> list[BrokenRule]:
    horizon, envs = config.trainer.rollout.horizon, config.trainer.rollout.num_envs
    if horizon * envs <= _MAX_BATCH:
        return []
    text = (
        f"a rollout of horizon={horizon} x num_envs={envs} steps fits no machine; lower one of them"
    )
    return [BrokenRule(("trainer.rollout.horizon", "trainer.rollout.num_envs"), text)]


def _segment_rules(config: "TrainingConfig") -> list[BrokenRule]:
    horizon, segment = config.trainer.rollout.horizon, config.trainer.rollout.bptt_horizon
    if not is_recurrent(config) or segment >= horizon or horizon % segment == 0:
        return []
    legal = " or ".join(str(size) for size in nearest_divisors(horizon, segment))
    text = (
        f"bptt_horizon={segment} does not divide the horizon of {horizon}; try bptt_horizon={legal}"
    )
    return [BrokenRule(("trainer.rollout.bptt_horizon", "trainer.rollout.horizon"), text)]


def _minibatch_rules(config: "TrainingConfig") -> list[BrokenRule]:
    rollout, size = config.trainer.rollout, config.trainer.ppo.minibatch_size
    segment = min(rollout.bptt_horizon, rollout.horizon) if is_recurrent(config) else 1
    try:
        check_minibatch_size(
            size, horizon=rollout.horizon, rows=rollout.num_envs, segment_length=segment
        )
    except ConfigError as error:
        paths = ("ppo.minibatch_size", "rollout.horizon", "rollout.num_envs")
        return [BrokenRule(tuple(f"trainer.{path}" for path in paths), str(error))]
    return []


def _worker_rules(config: "TrainingConfig") -> list[BrokenRule]:
    rollout = config.trainer.rollout
    per_group = rollout.num_envs // rollout.num_groups
    if rollout.num_workers <= per_group:
        return []
    text = (
        f"num_workers={rollout.num_workers}, but each of the {rollout.num_groups} group(s) has only "
        f"{per_group} environments, and every worker needs one of each; try num_workers={per_group} or "
        f"num_envs={rollout.num_groups * rollout.num_workers}"
    )
    return [BrokenRule(("trainer.rollout.num_workers", "trainer.rollout.num_envs"), text)]
