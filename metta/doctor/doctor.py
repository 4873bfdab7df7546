"""`check_env`: examines an environment, a network and losses, and reports causes and cures."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.factory import as_policy
from metta.agent.output import Obs
from metta.agent.policy import Policy
from metta.doctor.play_checks import (
    check_endings,
    check_final_observations,
    check_observations,
    check_rewards,
    time_limit_of,
)
from metta.doctor.players import GymPlayer, Leaves, Player
from metta.doctor.probe_env import ProbeSpaces
from metta.doctor.probes import Patient, run_probes
from metta.doctor.recording import Recording, flat, record
from metta.doctor.repeat_checks import check_actions, check_masks, check_seeding
from metta.doctor.reply_checks import ReplyInspector
from metta.doctor.report import Finding, Report
from metta.doctor.setup_checks import (
    check_action_bounds,
    check_batch,
    check_memory,
    check_restore,
    check_speed,
)
from metta.doctor.subject import Subject
from metta.doctor.wiring_checks import check_wiring
from metta.envs.facts import recipe_of
from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, EnvError, MettaError, PolicyError, SpaceError
from metta.rl.call_arguments import named_policy, require_own_count
from metta.rl.learn.custom_losses import CustomLoss, LossFunction, as_custom_losses
from metta.rl.own_settings import whole_config
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = ["check_env"]

_PLAY_STEPS = 3000
_MIN_PLAY_STEPS = 100
_SEED = 11
_MAX_CHOICES, _SHOWN = 256, 6
_SPACE_WIDTH = 120


def check_env(
    env: Any,
    policy: nn.Module | str | None = None,
    losses: Sequence[CustomLoss | LossFunction] = (),
    *,
    config: TrainingConfig | Mapping[str, Any] | None = None,
    play_steps: int = _PLAY_STEPS,
    probes: bool = True,
    **settings: Any,
) -> Report:
    """Examine what a `PPOTrainer` with these arguments would train; nothing given is changed but played.

        report = check_env("CartPole-v1")
        report = check_env(MyEnv, policy=MyNetwork(), losses=[my_loss], learning_rate=1e-3)
        print(report)

    The environment plays `play_steps` random steps, then episodes are repeated; copies of the network
    and the losses learn `probes`, small tasks with known answers in the spaces of the environment. An
    environment that exists already is reset, and left open. The report ends with the recipe that it would
    take. An environment that cannot be made at all is an `EnvError`.
    """
    if play_steps < _MIN_PLAY_STEPS:
        raise ConfigError(
            f"play_steps={play_steps}: found too few to see anything; use {_MIN_PLAY_STEPS} or more"
        )
    network, settings = named_policy(policy, settings)
    config = apply_settings(whole_config(config), settings)
    require_own_count(env, config, settings)
    learner = _Learner(network, as_custom_losses(losses), probes)
    findings: list[Finding] = []
    recipe: list[str] = []
    with global_generators_kept():
        subject = Subject(env, config.trainer.curriculum)
        try:
            with closing(subject):
                config, lines = _with_recipe(config, subject)
                recipe += lines
                for finding in _examine(subject, config, play_steps, learner):
                    findings.append(finding)  # noqa: PERF402  # those before an error count
        except (SpaceError, EnvError) as error:
            findings.append(_refused("play", error, "training would stop here"))
    return Report(subject.name, tuple(findings), tuple(recipe))


@dataclasses.dataclass(frozen=True)
class _Learner:
    """What is to learn in the environment."""

    policy: nn.Module | None
    losses: list[CustomLoss]
    probes: bool
    """Whether copies of it are trained."""


def _with_recipe(config: TrainingConfig, subject: Subject) -> tuple[TrainingConfig, list[str]]:
    """The settings that training would have, and in words those of a recipe."""
    if subject.num_envs is not None:
        config = apply_settings(config, {"trainer.rollout.num_envs": subject.num_envs})
    num_envs = config.trainer.rollout.num_envs
    applied = recipe_of(config, subject.vec_env, subject.env, num_envs=num_envs)
    if applied is None:
        return config, []
    values = [f"{path}={value} ({applied.reason(path)})" for path, value in applied.values.items()]
    return applied.config, [applied.describe(), *values]


def _refused(check: str, error: MettaError, consequence: str) -> Finding:
    """What metta itself refuses, with its own words."""
    found, _, cure = str(error).partition("; ")
    return Finding(check, "fault", found, consequence, cure or "repair it there")


def _examine(
    subject: Subject, config: TrainingConfig, play_steps: int, learner: _Learner
) -> Iterator[Finding]:
    """All findings, in the order of the report; an error of the environment ends them."""
    inspector = ReplyInspector(subject.new_gym_env()) if subject.is_gym else None
    player = subject.new_player() if inspector is None else GymPlayer(inspector)
    shown = (_described(space) for space in (player.observation_space, player.action_space))
    yield Finding("spaces", "ok", " -> ".join(shown))
    try:
        recording = record(player, play_steps, _SEED)
    finally:
        if inspector is not None:
            yield from inspector.findings()
    yield from check_observations(recording, config.agent)
    yield from check_rewards(recording, config.agent)
    yield from check_endings(recording, None if inspector is None else time_limit_of(inspector))
    yield from check_final_observations(recording)
    yield from _repeated(subject)
    yield from check_speed(recording, config)
    yield from _examine_learner(subject.vec_env, recording, config, learner)


def _described(space: spaces.Space[Any]) -> str:
    """A space in a few words."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    text = " ".join(str(space).split())
    return text if len(text) <= _SPACE_WIDTH else f"{text[:_SPACE_WIDTH]}..."


def _repeated(subject: Subject) -> Iterator[Finding]:
    is_seeded = True
    one = subject.new_player()
    for finding in check_seeding(one, one if subject.is_given else subject.new_player()):
        is_seeded = is_seeded and finding.severity == "ok"
        yield finding
    if is_seeded:
        yield from check_actions(one)
        yield from check_masks(one)


def _examine_learner(
    vec_env: VecEnv, recording: Recording, config: TrainingConfig, learner: _Learner
) -> Iterator[Finding]:
    """Settings, network and losses."""
    player = recording.player
    yield from check_restore(vec_env)
    try:
        policy = _copied_policy(learner.policy, player, config)
    except PolicyError as error:
        yield _refused("network", error, "training would not begin")
        return
    yield from check_memory(config, vec_env, policy)
    yield from check_batch(config, vec_env.num_rows, policy)
    yield from check_action_bounds(player.action_space, policy)
    choices = _choices(recording)
    is_sound = True
    for finding in check_wiring(policy, _tensors(choices, policy)):
        is_sound = is_sound and finding.severity != "fault"
        yield finding
    if not learner.probes:
        return
    if not is_sound:
        yield Finding("probes", "note", "not run: the network has a fault", cure="repair it first")
        return
    where = ProbeSpaces(
        player.observation_space,
        player.action_space,
        {key: leaf[:2] for key, leaf in choices.items()},
        player.mask_size,
    )
    yield from run_probes(
        Patient(learner.policy, learner.losses, config, where, policy.is_recurrent)
    )


def _copied_policy(given: nn.Module | None, player: Player, config: TrainingConfig) -> Policy:
    seed = config.trainer.seed
    try:
        copied = copy.deepcopy(given)
    except Exception as error:
        raise PolicyError(
            f"the network {type(given).__name__} cannot be copied: {type(error).__name__}: {error}; "
            "keep only parameters, buffers and plain data as its attributes"
        ) from error
    return as_policy(copied, player.observation_space, player.action_space, config.agent, seed=seed)


def _choices(recording: Recording) -> Leaves:
    """A few observations, the two that differ most in front: ``[n, ...]`` per leaf."""
    generator = np.random.default_rng(_SEED)
    number = recording.num_steps
    chosen = generator.choice(number, min(number, _MAX_CHOICES), replace=False)
    rows = recording.player.num_rows
    leaves = {
        leaf.key: np.stack([recording.seen[i // rows].obs[leaf.key][i % rows] for i in chosen])
        for leaf in recording.player.obs_spec.leaves
    }
    vectors = flat(leaves)
    squares = np.square(vectors).sum(1)
    distances = squares[:, None] + squares[None] - 2 * vectors @ vectors.T
    pair = np.unravel_index(int(distances.argmax()), distances.shape)
    order = [*(int(place) for place in pair), *range(_SHOWN)]
    return {key: leaf[[place % len(leaf) for place in order]] for key, leaf in leaves.items()}


def _tensors(leaves: Leaves, policy: Policy) -> Obs:
    return {key: torch.from_numpy(leaf)[None].to(policy.device) for key, leaf in leaves.items()}
