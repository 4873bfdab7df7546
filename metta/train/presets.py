"""Settings that are known to solve well-known tasks."""

from collections.abc import Callable

from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = [
    "PRESETS",
    "acrobot_config",
    "cartpole_config",
    "lunar_lander_config",
    "pendulum_config",
    "preset_for",
]


def cartpole_config() -> TrainingConfig:
    """CartPole-v1: solved (475) well within 100k steps."""
    return apply_settings(
        TrainingConfig(experiment_name="cartpole", env="CartPole-v1"),
        {
            "total_timesteps": 100_000,
            "num_envs": 8,
            "horizon": 128,
            "update_epochs": 8,
            "num_minibatches": 4,
            "learning_rate": 2e-3,
            "lr_schedule": "linear",
            "gamma": 0.98,
            "gae_lambda": 0.9,
        },
    )


def acrobot_config() -> TrainingConfig:
    """Acrobot-v1: -100 within 300k steps."""
    return apply_settings(
        TrainingConfig(experiment_name="acrobot", env="Acrobot-v1"),
        {
            "total_timesteps": 300_000,
            "num_envs": 16,
            "horizon": 256,
            "update_epochs": 4,
            "num_minibatches": 16,
            "learning_rate": 1e-3,
            "lr_schedule": "linear",
            "gae_lambda": 0.94,
            "normalize_observations": True,
        },
    )


def lunar_lander_config() -> TrainingConfig:
    """LunarLander-v3: solved (200) within 1M steps."""
    return apply_settings(
        TrainingConfig(experiment_name="lunar_lander", env="LunarLander-v3"),
        {
            "total_timesteps": 1_000_000,
            "num_envs": 16,
            "horizon": 512,
            "update_epochs": 4,
            "num_minibatches": 32,
            "learning_rate": 1e-3,
            "lr_schedule": "linear",
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.01,
            "ent_schedule": "linear",
            "normalize_returns": True,
        },
    )


def pendulum_config() -> TrainingConfig:
    """Pendulum-v1: -250 within 300k steps."""
    return apply_settings(
        TrainingConfig(experiment_name="pendulum", env="Pendulum-v1"),
        {
            "total_timesteps": 300_000,
            "num_envs": 8,
            "horizon": 512,
            "update_epochs": 10,
            "num_minibatches": 32,
            "learning_rate": 1e-3,
            "lr_schedule": "linear",
            "gamma": 0.9,
            "normalize_returns": True,
        },
    )


PRESETS: dict[str, Callable[[], TrainingConfig]] = {
    "cartpole": cartpole_config,
    "acrobot": acrobot_config,
    "lunar_lander": lunar_lander_config,
    "pendulum": pendulum_config,
}
"""Presets by name."""


def preset_for(env_id: str) -> TrainingConfig:
    """The preset whose environment is `env_id`, or the defaults with that environment."""
    for build in PRESETS.values():
        config = build()
        if config.env == env_id:
            return config
    return TrainingConfig(env=env_id)
