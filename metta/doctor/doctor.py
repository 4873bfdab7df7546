"""`check_env`: examines an environment, a network and losses, and reports causes and cures."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
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
)
from metta.doctor.players import Leaves, Player, PlayError, RawPlayer
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
from metta.doctor.subject import Subject, open_subject
from metta.doctor.wiring_checks import check_wiring
from metta.envs.facts import env_facts
from metta.errors import ConfigError, EnvError, MettaError, PolicyError, SpaceError
from metta.rl.call_arguments import require_own_count
from metta.rl.learn.custom_losses import CustomLoss, LossFunction, as_custom_losses
from metta.train.recipes import Applied, with_recipe
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
    policy: nn.Module | None = None,
    losses: Sequence[CustomLoss | LossFunction] = (),
    *,
    config: TrainingConfig | None = None,
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
    config = apply_settings(config or TrainingConfig(), settings)
    require_own_count(env, config, settings)
    given = as_custom_losses(losses)
    findings: list[Finding] = []
    recipe: list[str] = []
    with open_subject(env, config.trainer.curriculum.env_kwargs) as subject:
        try:
            applied = _applied_recipe(subject, env, config)
            recipe += [] if applied is None else _recipe_lines(applied)
            trained = config if applied is None else applied.config
            learner = policy, given
            for finding in _examine(
                subject, config, play_steps, learner, trained=trained, probes=probes
            ):
                findings.append(finding)  # noqa: PERF402  # those before an error count
        except PlayError as error:
            findings.append(_unplayable(error.check, error))
        except (SpaceError, EnvError) as error:
            findings.append(_unplayable("play", error))
    return Report(subject.name, tuple(findings), tuple(recipe))


def _applied_recipe(subject: Subject, env: Any, config: TrainingConfig) -> Applied | None:
    """The recipe that training would follow."""
    about = config.trainer.curriculum
    facts = env_facts(subject.one_vec_env(), env, about.env_kwargs, about.wrappers)
    num_envs = subject.num_envs or config.trainer.rollout.num_envs
    return with_recipe(config, dataclasses.replace(facts, rows=facts.rows * num_envs))


def _recipe_lines(applied: Applied) -> list[str]:
    """The recipe, and what it would set."""
    values = [f"{path}={value} ({applied.reason(path)})" for path, value in applied.values.items()]
    return [applied.describe(), *values]


def _unplayable(check: str, error: MettaError) -> Finding:
    found, _, cure = str(error).partition("; ")
    return Finding(
        check, "fault", found, "training would stop here", cure or "mend the environment there"
    )


def _examine(
    subject: Subject,
    config: TrainingConfig,
    play_steps: int,
    learner: tuple[nn.Module | None, list[CustomLoss]],
    *,
    trained: TrainingConfig,
    probes: bool,
) -> Iterator[Finding]:
    """All findings, in the order of the report; an error of the environment ends them.

    `trained` has the settings that training would take: those given, and those of the recipe.
    """
    player = subject.new_player(None)
    shown = (_described(space) for space in (player.observation_space, player.action_space))
    yield Finding("spaces", "ok", " -> ".join(shown))
    inspector = None
    if isinstance(player, RawPlayer):
        inspector = player.inspector = ReplyInspector(player.env)
    try:
        recording = record(player, play_steps, _SEED)
    finally:
        if inspector is not None:
            yield from inspector.findings()
    yield from check_observations(recording, config.agent)
    yield from check_rewards(recording, config.agent)
    yield from check_endings(recording, subject.time_limit)
    yield from check_final_observations(recording)
    yield from _repeated(subject, player)
    yield from check_speed(recording, config)
    yield from _examine_learner(subject, recording, config, learner, trained=trained, probes=probes)


def _described(space: spaces.Space[Any]) -> str:
    """A space in a few words."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    text = " ".join(str(space).split())
    return text if len(text) <= _SPACE_WIDTH else f"{text[:_SPACE_WIDTH]}..."


def _repeated(subject: Subject, player: Player) -> Iterator[Finding]:
    if isinstance(player, RawPlayer):
        player.inspector = None
    is_seeded = True
    one, two = (subject.new_player(None) if subject.is_fresh else player for _ in range(2))
    for finding in check_seeding(one, two):
        is_seeded = is_seeded and finding.severity == "ok"
        yield finding
    if is_seeded:
        yield from check_actions(player)
        yield from check_masks(player)


def _examine_learner(
    subject: Subject,
    recording: Recording,
    config: TrainingConfig,
    learner: tuple[nn.Module | None, list[CustomLoss]],
    *,
    trained: TrainingConfig,
    probes: bool,
) -> Iterator[Finding]:
    """Settings, network and losses."""
    given, losses = learner
    vec_env, player = subject.one_vec_env(), recording.player
    yield from check_restore(vec_env)
    try:
        policy = _copied_policy(given, player, config)
    except PolicyError as error:
        found, _, cure = str(error).partition("; ")
        yield Finding("network", "fault", found, "training would not begin", cure)
        return
    if subject.num_envs is not None:
        count = {"trainer.rollout.num_envs": subject.num_envs}
        config, trained = apply_settings(config, count), apply_settings(trained, count)
    yield from check_memory(trained, vec_env, policy)
    yield from check_batch(trained, vec_env.num_rows, policy)
    yield from check_action_bounds(player.action_space, policy)
    choices = _choices(recording)
    if not len(next(iter(choices.values()))):
        return
    is_sound = True
    for finding in check_wiring(policy, _tensors(choices, policy)):
        is_sound = is_sound and finding.severity != "fault"
        yield finding
    if not probes:
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
    yield from run_probes(Patient(given, losses, config, where, policy.is_recurrent))


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
    """A few finite observations, the two that differ most in front: ``[n, ...]`` per leaf."""
    generator = np.random.default_rng(_SEED)
    number = recording.num_steps
    chosen = generator.choice(number, min(number, _MAX_CHOICES), replace=False)
    rows = recording.player.num_rows
    leaves = {
        leaf.key: np.stack([recording.seen[i // rows].obs[leaf.key][i % rows] for i in chosen])
        for leaf in recording.player.obs_spec.leaves
    }
    vectors = flat(leaves)
    is_finite = np.isfinite(vectors).all(1)
    leaves, vectors = {key: leaf[is_finite] for key, leaf in leaves.items()}, vectors[is_finite]
    if not len(vectors):
        return leaves
    squares = np.square(vectors).sum(1)
    distances = squares[:, None] + squares[None] - 2 * vectors @ vectors.T
    pair = np.unravel_index(int(distances.argmax()), distances.shape)
    order = [*(int(place) for place in pair), *range(_SHOWN)]
    return {key: leaf[[place % len(leaf) for place in order]] for key, leaf in leaves.items()}


def _tensors(leaves: Leaves, policy: Policy) -> Obs:
    return {key: torch.from_numpy(leaf)[None].to(policy.device) for key, leaf in leaves.items()}
