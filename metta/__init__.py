"""metta: PPO training with PyTorch, from one command to single parts.

    from metta import PPOTrainer

    history = PPOTrainer(None, "CartPole-v1").train(total_timesteps=50_000)

Importing `metta` imports no torch: names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.agent.factory import make_policy
    from metta.agent.policy import Policy
    from metta.doctor.doctor import check_env
    from metta.loggers.stats_logger import StatsLogger
    from metta.rl.collect.buffer import RolloutBuffer
    from metta.rl.collect.collector import RolloutCollector
    from metta.rl.collect.rollout_data import combine_rollouts
    from metta.rl.collect.rollout_report import describe_rollout
    from metta.rl.components.trainer import Trainer
    from metta.rl.evaluate.evaluator import PolicyEvaluator
    from metta.rl.hooks.base import TrainerHook
    from metta.rl.learn.custom_losses import CustomLoss
    from metta.rl.learn.ppo import PPOOptimizer
    from metta.rl.ppo_trainer import PPOTrainer
    from metta.rl.remote.remote_workers import remote_workers
    from metta.rl.resume.checkpointer import TrainingCheckpointer
    from metta.store.loaded_policy import load_policy
    from metta.store.rollout_file import load_rollout, save_rollout
    from metta.train.train_config import TrainingConfig

__version__ = "0.1.0"

_HOMES = {
    "CustomLoss": "metta.rl.learn.custom_losses",
    "PPOOptimizer": "metta.rl.learn.ppo",
    "PPOTrainer": "metta.rl.ppo_trainer",
    "Policy": "metta.agent.policy",
    "PolicyEvaluator": "metta.rl.evaluate.evaluator",
    "RolloutBuffer": "metta.rl.collect.buffer",
    "RolloutCollector": "metta.rl.collect.collector",
    "StatsLogger": "metta.loggers.stats_logger",
    "Trainer": "metta.rl.components.trainer",
    "TrainerHook": "metta.rl.hooks.base",
    "TrainingCheckpointer": "metta.rl.resume.checkpointer",
    "TrainingConfig": "metta.train.train_config",
    "check_env": "metta.doctor.doctor",
    "combine_rollouts": "metta.rl.collect.rollout_data",
    "describe_rollout": "metta.rl.collect.rollout_report",
    "load_policy": "metta.store.loaded_policy",
    "load_rollout": "metta.store.rollout_file",
    "make_policy": "metta.agent.factory",
    "remote_workers": "metta.rl.remote.remote_workers",
    "save_rollout": "metta.store.rollout_file",
}

__all__ = [
    "CustomLoss",
    "PPOOptimizer",
    "PPOTrainer",
    "Policy",
    "PolicyEvaluator",
    "RolloutBuffer",
    "RolloutCollector",
    "StatsLogger",
    "Trainer",
    "TrainerHook",
    "TrainingCheckpointer",
    "TrainingConfig",
    "__version__",
    "check_env",
    "combine_rollouts",
    "describe_rollout",
    "load_policy",
    "load_rollout",
    "make_policy",
    "remote_workers",
    "save_rollout",
]

_PPO = "metta.PPOTrainer(None, env)"
_ELSEWHERE = {
    "PPO": _PPO,
    "PPOConfig": "metta.TrainingConfig()",
    "RecurrentPPO": "metta.PPOTrainer(None, env, core='lstm')",
    "MaskablePPO": f"{_PPO}; masks of the environment are used by themselves",
    "BaseCallback": "metta.TrainerHook",
    "VecNormalize": "metta.PPOTrainer(None, env, normalize_observations=True, normalize_returns=True)",
    "evaluate_policy": "metta.sim.run_episodes(trainer.policy, metta.envs.make_vec_env(env), 20, seed=1)",
    "make_vec_env": "metta.envs.make_vec_env(env, num_envs=4)",
    "run_episodes": "metta.sim.run_episodes(policy, envs, 20, seed=1)",
}
"""Names of other libraries, or of another module -> what to write here."""

__getattr__ = lazy_exports(__name__, _HOMES, _ELSEWHERE)[0]


def __dir__() -> list[str]:
    return __all__
