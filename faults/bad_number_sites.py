"""Where NaN, infinity and absurd numbers are put into a run, and what the error must contain."""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from torch import Tensor, nn

from metta.cli import training as train_command
from metta.cli.main import main
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.rl.learn.custom_losses import CustomLoss

EPOCHS = 8
ENV, SHORT_ENV = "faults.bad_number_sites:Spoilt-v0", "faults.bad_number_sites:SpoiltShort-v0"
_STEPS = 8 * 4
_SETTINGS = [f"total_timesteps={EPOCHS * _STEPS}", "num_envs=4", "horizon=8", "update_epochs=2",
             "num_minibatches=2", "hidden_size=8", "learning_rate=1e-2", "eval_episodes=0",
             "keep_last=1000", "monitor_seconds=0", "actor=eager"]  # fmt: skip
_LAST_STEP = 5


class SpoiltEnv(CartPoleEnv):
    """CartPole, until `fault` is set: the next environment to step then spoils what it returns."""

    fault: tuple[str, float] | None = None
    """What is spoilt, for all environments of this process, and the number that it becomes."""

    def __init__(self) -> None:
        super().__init__()
        self._num_steps = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._num_steps = 0
        observation, info = super().reset(**options)
        return self._spoil("reset", observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        observation, reward, terminated, truncated, info = super().step(action)
        observation = self._spoil("observation", observation)
        if self._num_steps == _LAST_STEP:
            observation = self._spoil("final observation", observation)
        return observation, self._spoil("reward", reward), terminated, truncated, info

    @staticmethod
    def _spoil(what: str, value: Any) -> Any:
        if SpoiltEnv.fault is None or SpoiltEnv.fault[0] != what:
            return value
        number, SpoiltEnv.fault = SpoiltEnv.fault[1], None
        return value * 0 + number if what != "reward" else number


gymnasium.register("Spoilt-v0", SpoiltEnv)
gymnasium.register("SpoiltShort-v0", SpoiltEnv, max_episode_steps=_LAST_STEP)


class Fragile(nn.Module):
    """A custom loss with a weight and a buffer, whose value or gradient can be spoilt."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(()))
        self.value: float | None = None
        self.gradient: float | None = None

    def forward(self, new_values: Tensor) -> Tensor:
        bounded = new_values.tanh().reshape(-1, 1)
        self.mean.lerp_(bounded.detach().mean(), 0.1)
        predicted = self.layer(bounded)
        if self.gradient is not None:
            spoilt = self.gradient
            predicted.register_hook(lambda gradient: gradient * spoilt)
        loss = (predicted - self.mean).square().mean()
        return loss if self.value is None else loss * self.value


@dataclass
class Parts:
    """What can be spoilt of a run."""

    trainer: Trainer
    loss: Fragile
    number: float

    @property
    def network(self) -> nn.Module:
        return self.trainer.policy.module


def _env(what: str) -> Callable[[Parts], None]:
    def spoil(parts: Parts) -> None:
        SpoiltEnv.fault = what, parts.number

    return spoil


def _output(index: int) -> Callable[[Parts], None]:
    """Spoil what the network returns from now on: 0 the logits, 1 the values."""

    def spoil(parts: Parts) -> None:
        number = parts.number

        def change(_module: nn.Module, _given: Any, returned: tuple[Tensor, Tensor]) -> Any:
            return tuple(part * number if i == index else part for i, part in enumerate(returned))

        parts.network.register_forward_hook(change)

    return spoil


def _one(find: Callable[[Parts], Tensor]) -> Callable[[Parts], None]:
    """Spoil one entry of a tensor."""

    def spoil(parts: Parts) -> None:
        with torch.no_grad():
            find(parts).reshape(-1)[0] = parts.number

    return spoil


def _moment(parts: Parts) -> Tensor:
    optimizer: Any = parts.trainer.components and parts.trainer.components.optimizer
    return optimizer.exp_avg


def _second_moment(parts: Parts) -> Tensor:
    optimizer: Any = parts.trainer.components and parts.trainer.components.optimizer
    return optimizer.exp_avg_sq


def _obs_mean(parts: Parts) -> Tensor:
    normalizer: Any = parts.trainer.policy.obs_normalizer
    return normalizer.leaves[0].mean


def _return_m2(parts: Parts) -> Tensor:
    normalizer: Any = parts.trainer.policy.return_normalizer
    return normalizer.m2


def _recurrent_state(parts: Parts) -> Tensor:
    assert parts.trainer.components is not None
    state = parts.trainer.components.collector._states[0]
    return next(iter(state.values()))


def _log_std(parts: Parts) -> Tensor:
    weights = parts.network.named_parameters()
    return next(weight for name, weight in weights if name.endswith("log_std"))


def _learning_rate(parts: Parts) -> None:
    assert parts.trainer.components is not None
    parts.trainer.components.ppo.learning_rate = parts.number


def _loss_value(parts: Parts) -> None:
    parts.loss.value = parts.number


def _loss_gradient(parts: Parts) -> None:
    parts.loss.gradient = parts.number


def _parameter_gradient(parts: Parts) -> None:
    """Spoil what flows back into one weight of the network."""
    number = parts.number
    next(parts.network.parameters()).register_hook(lambda gradient: gradient * number)


INSIDE = ("on_epoch_start", "on_rollout_start")
"""Events between the snapshot of one epoch and the rollout of the next."""
ANYWHERE = ("on_epoch_start", "on_rollout_start", "on_rollout_end", "on_update_end", "before the snapshot",
            "after the snapshot")  # fmt: skip
_BAD = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Site:
    """One place where a number goes bad."""

    spoil: Callable[[Parts], None]
    says: str
    """A pattern that the last line must match; empty: the run continues."""
    events: tuple[str, ...] = INSIDE
    numbers: tuple[float, ...] = _BAD
    settings: tuple[str, ...] = ()
    env: str = ENV
    for_one_epoch: bool = False
    """Whether the custom loss is healthy again in the next epoch."""
    stays_healthy: bool = True
    """Whether nothing that is saved was touched."""
    may_go_on: bool = False
    """Whether the run may also reach its end, having skipped steps."""


_ENV_SAYS = r"EnvError: .*{}.* (nan|inf|-inf) at step"
_LOSS_SAYS = (
    r"NonFiniteError: 8 optimizer steps in a row were skipped because .*{}.* NaN or infinite"
)
_POLICY_SAYS = r"NonFiniteError: (the policy is not saved|column|.*optimizer steps in a row)"
_SAVED_SAYS = r"NonFiniteError: epoch \d+ is not saved: .*{}"
_OBS_NORM, _RETURN_NORM = ("normalize_observations=true",), ("normalize_returns=true",)

SITES: dict[str, Site] = {
    "observation": Site(_env("observation"), _ENV_SAYS.format("observation")),
    "observation after a reset": Site(_env("reset"), _ENV_SAYS.format("observation"), env=SHORT_ENV),
    "final observation": Site(
        _env("final observation"), _ENV_SAYS.format("final observation"), env=SHORT_ENV
    ),
    "reward": Site(_env("reward"), _ENV_SAYS.format("reward")),
    "huge reward": Site(
        _env("reward"), "NonFiniteError", numbers=(1e30, -1e30), may_go_on=True
    ),
    "huge reward, normalised returns": Site(
        _env("reward"), "NonFiniteError", numbers=(1e30, -1e30), settings=_RETURN_NORM, may_go_on=True
    ),
    "custom loss": Site(_loss_value, _LOSS_SAYS.format("custom loss 'fragile'")),
    "custom loss for one epoch": Site(_loss_value, "", for_one_epoch=True),
    "gradient of a custom loss": Site(_loss_gradient, _LOSS_SAYS.format("the gradient")),
    "gradient of a weight": Site(_parameter_gradient, _LOSS_SAYS.format("the gradient")),
    "logits": Site(_output(0), "NonFiniteError: .*log_probs"),
    "values": Site(_output(1), "NonFiniteError: .*values"),
    "weight": Site(
        _one(lambda parts: next(parts.network.parameters())),
        _POLICY_SAYS, ANYWHERE, stays_healthy=False,
    ),
    "deviation of actions": Site(
        _one(_log_std), rf"{_POLICY_SAYS}|NonFiniteError: .*non-finite action", ANYWHERE,
        env="Pendulum-v1", stays_healthy=False,
    ),
    "optimizer's first moment": Site(
        _one(_moment), f"{_POLICY_SAYS}|{_SAVED_SAYS.format('optimizer')}", ANYWHERE,
        stays_healthy=False,
    ),
    "optimizer's second moment": Site(
        _one(_second_moment), f"{_POLICY_SAYS}|{_SAVED_SAYS.format('optimizer')}", ANYWHERE,
        stays_healthy=False,
    ),
    "observations' mean": Site(
        _one(_obs_mean), _POLICY_SAYS, ANYWHERE, settings=_OBS_NORM, stays_healthy=False
    ),
    "returns' deviation": Site(
        _one(_return_m2), _POLICY_SAYS, ANYWHERE, settings=_RETURN_NORM, stays_healthy=False
    ),
    "custom loss's buffer": Site(
        _one(lambda parts: parts.loss.mean), f"{_LOSS_SAYS.format('custom loss')}|"
        f"{_SAVED_SAYS.format('loss/fragile')}", ANYWHERE, stays_healthy=False,
    ),
    "custom loss's weight": Site(
        _one(lambda parts: parts.loss.layer.weight), f"{_LOSS_SAYS.format('custom loss')}|"
        f"{_SAVED_SAYS.format('loss/fragile')}", ANYWHERE, stays_healthy=False,
    ),
    "learning rate": Site(
        _learning_rate, f"{_POLICY_SAYS}|{_SAVED_SAYS.format('optimizer')}", ANYWHERE,
        stays_healthy=False,
    ),
    "recurrent state": Site(
        _one(_recurrent_state), f"{_POLICY_SAYS}|{_SAVED_SAYS.format('collector')}", ANYWHERE,
        (math.nan,), settings=("core=lstm", "bptt_horizon=8"), stays_healthy=False,
    ),
}  # fmt: skip


class Injector(TrainerHook):
    """Spoils one thing at one event of one epoch, and notes which epoch was healthy last."""

    def __init__(self, parts: Parts, site: Site, event: str, epoch: int, note: Path) -> None:
        self.parts, self.site, self.epoch, self.note = parts, site, epoch, note
        self.event = "on_epoch_end" if "snapshot" in event else event
        self.order = -1000 if event == "before the snapshot" else 1000
        self.is_done = False

    def _hear(self, event: str, trainer_state: Any) -> None:
        if self.is_done and self.site.for_one_epoch and event == "on_update_end":
            self.parts.loss.value = None
        if self.is_done or event != self.event or trainer_state.epoch < self.epoch:
            return
        self.is_done = True
        healthy = trainer_state.epoch - (self.order < 0)
        self.note.write_text(str(healthy))
        self.site.spoil(self.parts)

    def on_epoch_start(self, trainer_state: Any) -> None:
        self._hear("on_epoch_start", trainer_state)

    def on_rollout_start(self, trainer_state: Any) -> None:
        self._hear("on_rollout_start", trainer_state)

    def on_rollout_end(self, trainer_state: Any) -> None:
        self._hear("on_rollout_end", trainer_state)

    def on_update_end(self, trainer_state: Any) -> None:
        self._hear("on_update_end", trainer_state)

    def on_epoch_end(self, trainer_state: Any) -> None:
        self._hear("on_epoch_end", trainer_state)


def warm_up() -> None:
    """Train once, so that everything is imported that is imported late."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        code = main(["train", ENV, *_SETTINGS, "total_timesteps=32", "--output", folder])
        assert code == 0, "the run without a fault failed"


def train(site: str, number: float, event: str, epoch: int, interval: int, folder: str) -> None:
    """`metta train` in this process, with one number gone bad; what it prints goes to ``output.txt``."""
    chosen, path, loss = SITES[site], Path(folder), Fragile()
    path.mkdir()
    output = os.open(path / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)

    def spoilt_trainer(*args: Any, **options: Any) -> Trainer:
        losses = [CustomLoss(loss, weight=0.01, name="fragile")]
        trainer = Trainer(*args, custom_losses=losses, **options)
        parts = Parts(trainer, loss, number)
        trainer.add_hook(Injector(parts, chosen, event, epoch, path / "healthy"))
        return trainer

    train_command.Trainer = spoilt_trainer  # type: ignore[assignment, misc]  # a probe
    where = [f"checkpoint_interval={interval}", "--run", path.name, "--output", str(path.parent)]
    sys.exit(main(["train", chosen.env, *_SETTINGS, *chosen.settings, *where]))
