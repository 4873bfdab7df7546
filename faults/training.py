"""Small runs for the campaigns: each is over in a fraction of a second; every kind of state occurs."""

import mmap
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn

from faults.saved_envs import SavedCartPole
from metta.envs.toy import MaskedCorridorEnv
from metta.loggers.events.history import metric_rows
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.resume import checkpointer
from metta.testing.digests import DigestHook
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

EPOCHS, HORIZON, NUM_ENVS = 12, 8, 4
STEPS_PER_EPOCH = HORIZON * NUM_ENVS
_BASE = {
    "total_timesteps": EPOCHS * STEPS_PER_EPOCH,
    "num_envs": NUM_ENVS,
    "horizon": HORIZON,
    "update_epochs": 2,
    "num_minibatches": 2,
    "hidden_size": 8,
    "learning_rate": 1e-2,
    "verbose": False,
    "eval_episodes": 0,
    "checkpoint_interval": 1,
    "monitor_seconds": 0,
}
_TASKS = {"short": {"max_episode_steps": 9}, "long": {"max_episode_steps": 40}}
_MASKED, _SAVED = f"{__name__}:MaskedCorridor-v0", f"{__name__}:SavedCartPole-v0"
gymnasium.register("MaskedCorridor-v0", entry_point=MaskedCorridorEnv, disable_env_checker=True)
gymnasium.register(
    "SavedCartPole-v0", entry_point=SavedCartPole, disable_env_checker=True, max_episode_steps=30
)

CONFIGS: dict[str, dict[str, Any]] = {
    "mlp": {"env": "CartPole-v1"},
    "mlp-normalised": {
        "env": "CartPole-v1",
        "normalize_observations": True,
        "normalize_returns": True,
    },
    "mlp-linear": {"env": "Acrobot-v1", "lr_schedule": "linear"},
    "mlp-kl": {"env": "CartPole-v1", "lr_schedule": "adaptive_kl", "target_kl": 0.01},
    "lstm": {"env": "CartPole-v1", "core": "lstm"},
    "gru-normalised": {"env": "CartPole-v1", "core": "gru", "normalize_observations": True},
    "box": {"env": "Pendulum-v1", "normalize_observations": True},
    "loss": {"env": "CartPole-v1", "custom_loss": True},
    "snapshot": {"env": _SAVED, "env_restore": "snapshot"},
    "repeat": {"env": "CartPole-v1", "env_restore": "repeat"},
    "repeat-lstm": {"env": "MountainCar-v0", "env_restore": "repeat", "core": "lstm"},
    "sync-reset": {"env": "CartPole-v1", "env_restore": "sync_reset", "checkpoint_interval": 3},
    "evaluated": {"env": "CartPole-v1", "eval_episodes": 2, "evaluate_interval": 4},
    "evaluated-background": {
        "env": "CartPole-v1",
        "eval_episodes": 2,
        "evaluate_interval": 1,
        "where": "process",
        "checkpoint_interval": 2,
        "keep_last": 1,
    },
    "log-interval": {"env": "CartPole-v1", "log_interval": 5, "checkpoint_interval": 2},
    "workers": {"env": "CartPole-v1", "num_workers": 2},
    "workers-lstm": {"env": "CartPole-v1", "num_workers": 2, "core": "lstm", "num_groups": 2},
    "workers-snapshot": {"env": _SAVED, "num_workers": 2, "env_restore": "snapshot"},
    "workers-repeat": {"env": "Pendulum-v1", "num_workers": 2, "env_restore": "repeat"},
    "curriculum": {"env": "CartPole-v1", "curriculum.kind": "learning_progress", "tasks": _TASKS},
    "workers-curriculum": {
        "env": "CartPole-v1",
        "curriculum.kind": "prioritize_regressed",
        "tasks": _TASKS,
        "num_workers": 2,
    },
    "grid": {
        "env": "grid/gather",
        "env_kwargs": {"horizon": 24},
        "core": "lstm",
        "total_timesteps": 4 * EPOCHS * STEPS_PER_EPOCH,
    },
    "grid-curriculum": {
        "env": "grid/gather",
        "env_kwargs": {"horizon": 12},
        "curriculum.kind": "learning_progress",
        "buckets": {"num_resources": [4, 8], "wall_density": [0.0, 0.2]},
        "total_timesteps": 4 * EPOCHS * STEPS_PER_EPOCH,
    },
    "carts": {"env": "metta/cartpole", "env_kwargs": {"max_episode_steps": 30}},
    "carts-normalised": {
        "env": "metta/cartpole",
        "env_kwargs": {"max_episode_steps": 30},
        "normalize_observations": True,
        "normalize_returns": True,
        "num_groups": 2,
    },
    "numpy-actor": {"env": "CartPole-v1", "actor": "numpy"},
    "eager-actor": {"env": "CartPole-v1", "actor": "eager"},
    "traced-actor": {"env": "CartPole-v1", "actor": "traced"},
    "masked": {"env": _MASKED},
    "masked-lstm": {"env": _MASKED, "core": "lstm"},
    "shards": {"env": "CartPole-v1", "num_shards": 2, "core": "lstm"},
    "ahead": {"env": "CartPole-v1", "num_shards": 2, "core": "lstm", "collect.overlap": True},
    "workers-ahead": {
        "env": "CartPole-v1",
        "num_shards": 2,
        "collect.kind": "process",
        "collect.overlap": True,
        "normalize_observations": True,
    },
    "workers-masked": {"env": _MASKED, "num_workers": 2},
    "agents": {
        "env": "pettingzoo:mpe2.simple_spread_v3",
        "env_kwargs": {"max_cycles": 11},
        "total_timesteps": 3 * EPOCHS * STEPS_PER_EPOCH,
    },
    "agent-groups": {
        "env": "grid/crowd",
        "env_kwargs": {"horizon": 24, "num_agents": 4, "agent_groups": [1, 3]},
        "core": "gru",
        "total_timesteps": 4 * EPOCHS * STEPS_PER_EPOCH,
    },
    "self-play": {
        "env": "grid/crowd",
        "env_kwargs": {"horizon": 24, "num_agents": 4},
        "learner_share": 0.5,
        "self_play_interval": 2,
        "pool_size": 2,
        "total_timesteps": 2 * EPOCHS * STEPS_PER_EPOCH,
    },
}
"""Name -> settings; `custom_loss` adds one with its own parameters and state."""
COMPILED: dict[str, dict[str, Any]] = {
    "step": {"env": "CartPole-v1", "driver": "step"},
    "step-kl": {"env": "CartPole-v1", "driver": "step", "target_kl": 0.01, "lr_schedule": "linear"},
    "step-native": {"env": "metta/cartpole", "driver": "step", "normalize_observations": True},
    "step-lstm": {"env": "CartPole-v1", "driver": "step", "core": "lstm"},
    "step-sgd": {"env": "CartPole-v1", "driver": "step", "trainer.optimizer.name": "sgd"},
}
"""Runs whose updates are compiled, which takes a minute for each the first time."""
SERIAL = [name for name in CONFIGS if "workers" not in name]


class ForwardModel(nn.Module):
    """A custom loss with weights and a counter: it predicts values from advantages."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, values, advantages):
        self.calls += 1
        return (self.layer(advantages.reshape(-1, 1)) - values.reshape(-1, 1)).square().mean()


class Phases(TrainerHook):
    """Shows in one byte of a file what the process is doing, for the process that kills it."""

    order = -100

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"set-up  ")
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._original = checkpointer.write_checkpoint
        checkpointer.write_checkpoint = self._write_checkpoint  # type: ignore[assignment]  # a probe

    def _write_checkpoint(self, *args, **options):
        self._memory[7:8] = b"S"
        try:
            return self._original(*args, **options)
        finally:
            self._memory[7:8] = b" "

    def _show(self, phase: bytes) -> None:
        self._memory[0:7] = phase

    def on_rollout_start(self) -> None:
        self._show(b"collect")

    def on_rollout_end(self) -> None:
        self._show(b"learn  ")

    def on_update_end(self) -> None:
        self._show(b"hooks  ")

    def on_training_end(self) -> None:
        self._show(b"ending ")


def read_phase(path: Path) -> str:
    """What a process was doing; "+saving" where a checkpoint was being written."""
    try:
        shown = path.read_bytes().decode()
    except OSError:
        return "set-up"
    return shown[:7].strip() + ("+saving" if shown[7:] == "S" else "")


class DieAfter(TrainerHook):
    """Kills its own process when an epoch is over and saved."""

    order = 1000

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_start(self, trainer_state, checkpoint_hook) -> None:
        if trainer_state.epoch == self.epoch:
            checkpoint_hook.wait_for_save()
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(name: str, folder: str | Path, **changes: Any) -> Trainer:
    """The trainer of a run in a folder."""
    settings = {**_BASE, **{**CONFIGS, **COMPILED}[name], **changes}
    losses = []
    if settings.pop("custom_loss", False):
        torch.manual_seed(0)
        losses = [CustomLoss(ForwardModel(), weight=0.1, name="forward")]
    config = apply_settings(TrainingConfig(), settings)
    return Trainer(config, run_dir=folder, custom_losses=losses)


def warm_up() -> None:
    """Train once, so that everything is imported that is imported late."""
    with tempfile.TemporaryDirectory() as folder, trainer_of("mlp", folder) as trainer:
        trainer.train()


def train(
    name: str,
    folder: str,
    die_after: int | None = None,
    hooks: Sequence[TrainerHook] = (),
    **changes: Any,
) -> None:
    """Train in a folder, or continue; digests go to ``digests.jsonl``, the phase to ``phase``."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    phases = Phases(path / "phase")
    trainer = trainer_of(name, path, **changes)
    with trainer:
        for hook in (phases, DigestHook(path / "digests.jsonl"), *hooks):
            trainer.add_hook(hook)
        if die_after is not None:
            trainer.add_hook(DieAfter(die_after))
        trainer.train()


NOT_COMPARED = ("timing_", "monitor/", "overview/sps", "metric/total_time", "metric/train_time")


def comparable_rows(folder: Path) -> list[tuple[int, int, dict[str, str]]]:
    """The rows of metrics of a run, without what a clock decides."""
    return [
        (
            row.agent_step,
            row.epoch,
            {k: repr(v) for k, v in row.metrics.items() if not k.startswith(NOT_COMPARED)},
        )
        for row in metric_rows(folder / "events.jsonl")
    ]
