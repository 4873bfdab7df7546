"""Settings that are known to solve well-known tasks."""

import re
from collections.abc import Callable
from typing import Any

from metta.errors import ConfigError, did_you_mean
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = [
    "PRESETS",
    "acrobot_config",
    "cartpole_config",
    "find_preset",
    "grid_config",
    "large_distributed_config",
    "like_cleanrl",
    "like_sb3",
    "lunar_lander_config",
    "medium_config",
    "pendulum_config",
    "small_fast_config",
    "spread_config",
]

_ENV_ID = re.compile(r"-v\d+$|[:/]")
"""The part that only ids of environments have: a version, a module or a namespace."""


def _preset(name: str, base: TrainingConfig | None = None, **settings: Any) -> TrainingConfig:
    """A preset is complete: what it does not name has its default, and no recipe adds to it."""
    return apply_settings(
        base or TrainingConfig(), {"experiment_name": name, "recipe": "none", **settings}
    )


def cartpole_config() -> TrainingConfig:
    """CartPole-v1: solved (475) well within 100k steps."""
    return _preset(
        "cartpole",
        env="CartPole-v1",
        total_timesteps=100_000,
        num_envs=8,
        horizon=128,
        update_epochs=8,
        num_minibatches=4,
        learning_rate=2e-3,
        lr_schedule="linear",
        gamma=0.98,
        gae_lambda=0.9,
    )


def grid_config() -> TrainingConfig:
    """grid/gather: four agents learn to gather and deliver (20 and more each) within 400k steps."""
    return _preset(
        "grid",
        env="grid/gather",
        total_timesteps=400_000,
        num_envs=32,
        horizon=64,
        update_epochs=4,
        num_minibatches=8,
        learning_rate=3e-3,
        lr_schedule="linear",
        gamma=0.98,
        gae_lambda=0.9,
        ent_coef=0.003,
        activation="relu",
        replay_interval=20,
        checkpoint_interval=10,
    )


def spread_config() -> TrainingConfig:
    """pettingzoo:mpe2.simple_spread_v3: three agents learn to spread out (-20 each) within 300k steps."""
    return _preset(
        "spread",
        env="pettingzoo:mpe2.simple_spread_v3",
        total_timesteps=300_000,
        num_envs=16,
        horizon=50,
        update_epochs=8,
        num_minibatches=4,
        learning_rate=1.5e-3,
        lr_schedule="linear",
        gamma=0.95,
        ent_coef=0.005,
        normalize_returns=True,
    )


def acrobot_config() -> TrainingConfig:
    """Acrobot-v1: -100 within 300k steps."""
    return _preset(
        "acrobot",
        env="Acrobot-v1",
        total_timesteps=300_000,
        num_envs=16,
        horizon=256,
        update_epochs=4,
        num_minibatches=16,
        learning_rate=1e-3,
        lr_schedule="linear",
        gae_lambda=0.94,
        normalize_observations=True,
    )


def lunar_lander_config() -> TrainingConfig:
    """LunarLander-v3: solved (200) within 1M steps."""
    return _preset(
        "lunar_lander",
        env="LunarLander-v3",
        total_timesteps=1_000_000,
        num_envs=16,
        horizon=512,
        update_epochs=4,
        num_minibatches=32,
        learning_rate=1e-3,
        lr_schedule="linear",
        gamma=0.999,
        gae_lambda=0.98,
        ent_coef=0.01,
        ent_schedule="linear",
        normalize_returns=True,
    )


def pendulum_config() -> TrainingConfig:
    """Pendulum-v1: -250 within 300k steps."""
    return _preset(
        "pendulum",
        env="Pendulum-v1",
        total_timesteps=300_000,
        num_envs=8,
        horizon=512,
        update_epochs=10,
        num_minibatches=32,
        learning_rate=1e-3,
        lr_schedule="linear",
        gamma=0.9,
        normalize_returns=True,
    )


def small_fast_config() -> TrainingConfig:
    """CartPole-v1: a look at everything in a few seconds, not a solved task."""
    return _preset(
        "small_fast",
        env="CartPole-v1",
        total_timesteps=8_192,
        num_envs=4,
        horizon=64,
        update_epochs=4,
        num_minibatches=2,
        learning_rate=2e-3,
        hidden_size=32,
        gamma=0.98,
        eval_episodes=5,
    )


def medium_config() -> TrainingConfig:
    """LunarLander-v3: a wider network and environments in two worker processes."""
    return _preset(
        "medium",
        lunar_lander_config(),
        hidden_size=128,
        num_envs=32,
        horizon=256,
        num_workers=2,
        num_groups=2,
    )


def large_distributed_config() -> TrainingConfig:
    """LunarLander-v3: 128 environments in eight worker processes, double-buffered, 10M steps."""
    return _preset(
        "large_distributed",
        lunar_lander_config(),
        total_timesteps=10_000_000,
        hidden_size=256,
        num_envs=128,
        horizon=128,
        num_workers=8,
        num_groups=2,
        num_minibatches=16,
        checkpoint_interval=25,
    )


def like_sb3() -> TrainingConfig:
    """CartPole-v1: the defaults of Stable-Baselines3's PPO with an MLP, one environment."""
    return _preset(
        "like_sb3",
        env="CartPole-v1",
        total_timesteps=100_000,
        num_envs=1,
        horizon=2048,
        minibatch_size=64,
        update_epochs=10,
        learning_rate=3e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
        adam_eps=1e-5,
        hidden_size=64,
        num_layers=2,
        activation="tanh",
    )


def like_cleanrl() -> TrainingConfig:
    """CartPole-v1: the defaults of CleanRL's ppo.py."""
    return _preset(
        "like_cleanrl",
        env="CartPole-v1",
        total_timesteps=500_000,
        num_envs=4,
        horizon=128,
        num_minibatches=4,
        update_epochs=4,
        learning_rate=2.5e-4,
        lr_schedule="linear",
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        vf_clip_coef=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        adam_eps=1e-5,
        hidden_size=64,
        num_layers=2,
        activation="tanh",
    )


PRESETS: dict[str, Callable[[], TrainingConfig]] = {
    "cartpole": cartpole_config,
    "acrobot": acrobot_config,
    "grid": grid_config,
    "spread": spread_config,
    "lunar_lander": lunar_lander_config,
    "pendulum": pendulum_config,
    "small_fast": small_fast_config,
    "medium": medium_config,
    "large_distributed": large_distributed_config,
    "like_sb3": like_sb3,
    "like_cleanrl": like_cleanrl,
}
"""Presets by name."""


def find_preset(name: str) -> tuple[str | None, TrainingConfig]:
    """A preset by its name, or a configuration of an environment by its id; then the name is None."""
    if name in PRESETS:
        return name, PRESETS[name]()
    if not _ENV_ID.search(name):
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, PRESETS)} (presets are {', '.join(PRESETS)}; an "
            f"environment goes by its id, e.g. CartPole-v1, or by a setting: env={name})"
        )
    return None, apply_settings(TrainingConfig(), {"env": name})
