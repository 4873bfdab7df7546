"""`PolicyEvaluator`: scores of a policy on fresh episodes."""

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from metta.agent.policy import Policy
from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError
from metta.seeding import derive_seed
from metta.sim.scores import EvalRewardSummary
from metta.sim.simulation import EpisodeScores, run_episodes
from metta.train.run_config import EvaluationConfig

__all__ = ["PolicyEvaluator", "require_own_env"]

_CATEGORY = "training"


def require_own_env(task: Task) -> None:
    """Refuse an environment that exists already: playing in it would disturb whoever trains there."""
    if isinstance(task.env, gymnasium.Env | VectorEnv | VecEnv):
        raise ConfigError(
            f"evaluation needs environments of its own, but {task.name} exists already; give an id or a "
            "factory, or turn evaluation off with eval_episodes=0"
        )


class PolicyEvaluator:
    """Plays episodes in environments of its own and never touches those that train.

        evaluator = PolicyEvaluator("CartPole-v1", EvaluationConfig(eval_episodes=20))
        scores = evaluator.evaluate(policy)

    `env` is a gymnasium id, a `Task`, or a factory. Every evaluation plays the same episodes, so that
    scores of different moments can be compared; environments are made for each and closed after it.
    """

    def __init__(self, env: Any, config: EvaluationConfig | None = None, *, seed: int = 0) -> None:
        self.task = env if isinstance(env, Task) else Task(env)
        self.config = config or EvaluationConfig()
        self.seed = derive_seed(seed, "evaluation")
        self.last: EpisodeScores | None = None
        """Returns and lengths of the last evaluation."""

    @property
    def simulation(self) -> str:
        """Name of what is played: ``category/simulation``."""
        return f"{_CATEGORY}/{self.task.name}"

    def evaluate(self, policy: Policy) -> EvalRewardSummary:
        """Mean return of `eval_episodes` episodes; no scores where that is 0."""
        episodes = self.config.eval_episodes
        if episodes == 0:
            return EvalRewardSummary()
        require_own_env(self.task)
        num_envs = min(self.config.eval_envs, episodes)
        kwargs = self.task.env_kwargs
        vec_env = make_vec_env(self.task.env, num_envs=num_envs, env_kwargs=kwargs)
        try:
            self.last = run_episodes(policy, vec_env, episodes, seed=self.seed)
        finally:
            vec_env.close()
        return EvalRewardSummary({self.simulation: self.last.mean})
