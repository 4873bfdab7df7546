"""Trains on probe tasks with the user's network, losses and settings, and finds out what fails."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from metta.doctor.probe_env import ProbeSpaces, ProbeTask, ProbeVecEnv
from metta.doctor.report import Finding
from metta.envs.rows.action_masks import mask_layout_of
from metta.errors import ConfigError, MettaError
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.train_config import (
    AgentConfig,
    NumericsConfig,
    OptimizerConfig,
    RolloutConfig,
    TrainingConfig,
)

__all__ = ["Patient", "run_probes"]

_ROWS, _HORIZON, _SEGMENT = 16, 8, 4
_MAX_UPDATES = 20
_LEARNING_RATES = (2e-3, 4e-4)
"""Of the first try, and of a second one: large networks learn with small steps only."""
_MINIBATCHES, _PASSES = 4, 4
_GOOD_SCORE = 0.6
"""Of 1; an action that does not heed the cue scores 0."""
_GOOD_VALUE_ERROR = 0.25
_LARGE_BYTES = 4096
"""Networks of larger observations, such as screens, need more than a minute to learn from later rewards."""

_VALUE = ProbeTask(
    "value only", 1, None, "every step earns 1 and ends the episode, so every value is 1"
)
_ONE_STEP = ProbeTask(
    "one step", 1, 0, "half of the actions is right for one observation, the others for another"
)
_CONTINUOUS = ProbeTask("continuous", 1, 0, "each of two observations asks for its own action")
_DELAYED = ProbeTask(
    "delayed reward", 3, 0, "the first action decides the reward, which comes two steps later"
)
_MEMORY = ProbeTask("memory", 2, 1, "the first observation says what to do in the second step")
_MASK = ProbeTask("mask", 1, 0, "the mask forbids every wrong action", masked=True)


@dataclass(frozen=True)
class Patient:
    """What is probed; everything is copied before it is trained."""

    policy: nn.Module | None
    losses: Sequence[CustomLoss]
    config: TrainingConfig
    spaces: ProbeSpaces
    is_recurrent: bool


@dataclass(frozen=True)
class _Outcome:
    passed: bool
    reached: str
    updates: int
    warned: tuple[str, ...] = ()


def run_probes(patient: Patient) -> Iterator[Finding]:
    """One finding per probe, until one fails: its cause is looked for by leaving parts out."""
    warned: set[str] = set()
    for task in _tasks_for(patient):
        try:
            outcome = _try(task, patient)
        except ConfigError as error:
            yield Finding(
                "probes",
                "note",
                f"not run: {error}",
                cure="probe without this loss, or these settings",
            )
            return
        warned |= set(outcome.warned)
        name = f"probe: {task.name}"
        if not outcome.passed:
            found = (
                f"not solved after {_counted(outcome.updates)}: {outcome.reached}; {task.answer}"
            )
            yield Finding(name, "fault", found, *_diagnosis(task, patient))
            return
        yield Finding(name, "ok", f"solved after {_counted(outcome.updates)} ({outcome.reached})")
    for message in sorted(warned):
        found, _, cure = message.partition(". ")
        yield Finding("losses", "warning", found, "its gradient is zero", cure)


def _counted(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"


def _tasks_for(patient: Patient) -> Iterator[ProbeTask]:
    where = patient.spaces
    yield _VALUE
    layout = mask_layout_of(where.action_space)
    if layout is not None and max(layout.part_sizes) == 1:  # a single action: nothing to decide
        return
    differ = any(not np.array_equal(*cues) for cues in where.cues.values())
    if differ:
        yield _CONTINUOUS if layout is None else _ONE_STEP
        if sum(cues[0].nbytes for cues in where.cues.values()) <= _LARGE_BYTES:
            yield _DELAYED
            if patient.is_recurrent:
                yield _MEMORY
    if where.mask_size:
        yield _MASK


def _try(task: ProbeTask, patient: Patient) -> _Outcome:
    """The first try that passes, else the last one."""
    outcome = _Outcome(False, "it was not trained", 0)
    for rate in _LEARNING_RATES:
        outcome = _run(task, patient, rate)
        if outcome.passed:
            break
    return outcome


def _run(task: ProbeTask, patient: Patient, learning_rate: float) -> _Outcome:
    """Train until the answer is known, at most `_MAX_UPDATES` times."""
    env = ProbeVecEnv(task, patient.spaces, _ROWS)
    outcome = _Outcome(False, "it was not trained", 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = PPOTrainer(
            copy.deepcopy(patient.policy),
            env,
            config=_probe_config(patient.config, learning_rate),
            recipe="none",  # the settings are whole, and a probe is another environment
            custom_losses=copy.deepcopy(list(patient.losses)),
        )
        try:
            for update in range(_MAX_UPDATES):
                env.judged.clear()
                data = trainer.collect_rollouts()
                passed, reached = _judge(task, data, env)
                outcome = _Outcome(passed, reached, update)
                if passed and update > 0:
                    break
                trainer.learn(data)
        except ConfigError:
            raise
        except MettaError as error:
            outcome = _Outcome(False, f"training stopped: {error}", outcome.updates)
    told = (str(one.message) for one in caught if "custom loss" in str(one.message))
    return dataclasses.replace(outcome, warned=tuple(dict.fromkeys(told)))


def _probe_config(config: TrainingConfig, learning_rate: float) -> TrainingConfig:
    """The user's settings with small batches and a step size for few steps."""
    trainer = config.trainer
    optimizer = OptimizerConfig(
        learning_rate=learning_rate, beta1=trainer.optimizer.beta1, beta2=trainer.optimizer.beta2
    )
    ppo = dataclasses.replace(
        trainer.ppo,
        update_epochs=_PASSES,
        num_minibatches=_MINIBATCHES,
        minibatch_size=None,
        gradient_accumulation=1,
    )
    numerics = NumericsConfig(
        threads=1, actor="eager", driver="eager", precision=trainer.numerics.precision
    )
    return TrainingConfig(
        agent=config.agent,
        trainer=dataclasses.replace(
            type(trainer)(),
            seed=trainer.seed,
            device=trainer.device,
            verbose=False,
            ppo=ppo,
            optimizer=optimizer,
            numerics=numerics,
            rollout=RolloutConfig(num_envs=_ROWS, horizon=_HORIZON, bptt_horizon=_SEGMENT),
        ),
    )


def _judge(task: ProbeTask, data: dict[str, Tensor], env: ProbeVecEnv) -> tuple[bool, str]:
    if task.judged is None:
        error = float((data["values"] - 1.0).abs().mean())
        return error < _GOOD_VALUE_ERROR, f"values are off by {error:.2g}"
    score, needed = env.score(), 1.0 if task.masked else _GOOD_SCORE
    return score >= needed, f"actions score {score:.2f} of 1"


def _diagnosis(task: ProbeTask, patient: Patient) -> tuple[str, str]:
    """Cause and cure: the first part without which the probe is solved."""

    def passes(**changes: Any) -> bool:
        try:
            return _try(task, dataclasses.replace(patient, **changes)).passed
        except MettaError:
            return False

    guilty = _guilty_loss(patient, passes)
    if guilty:
        return (
            f"the probe is solved without {guilty}: it works against PPO",
            "check its sign (losses are minimised) and its weight (`CustomLoss(fn, weight=0.1)`)",
        )
    if patient.policy is not None and passes(policy=None, config=_with_default_agent(patient)):
        return (
            f"the probe is solved with a built-in network instead of {type(patient.policy).__name__}",
            "check that every layer is used, that gradients reach it, that outputs of the last layers "
            "are not squashed, and that inputs are scaled to about 1",
        )
    plain = TrainingConfig(agent=_with_default_agent(patient).agent)
    if passes(config=plain, losses=()):
        return (
            "the probe is solved with the default settings of PPO",
            "compare yours with them: `metta config --diff`, gamma, ent_coef and max_grad_norm first",
        )
    return (
        "it is not solved with a built-in network and default settings either",
        "look at the scale of observations and the bounds of actions, and try normalize_observations=true",
    )


def _guilty_loss(patient: Patient, passes: Callable[..., bool]) -> str:
    losses = list(patient.losses)
    if not losses or not passes(losses=()):
        return ""
    for loss in losses:
        if len(losses) > 1 and passes(losses=[other for other in losses if other is not loss]):
            return f"the loss {loss.label!r}"
    return (
        f"the loss{'es' if len(losses) > 1 else ''} {', '.join(repr(one.label) for one in losses)}"
    )


def _with_default_agent(patient: Patient) -> TrainingConfig:
    agent = AgentConfig(
        core="lstm" if patient.is_recurrent else "none", normalize_observations=True
    )
    return dataclasses.replace(patient.config, agent=agent)
