"""Several simulations of one policy, each in its own environments, which are closed after it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metta.agent.policy import Policy
from metta.agent.policy_record import HasPolicy, policy_of
from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.vec_env import VecEnv
from metta.errors import EnvError, MettaWarning, PolicyError
from metta.sim.episode_scores import EpisodeScores
from metta.sim.scores import EvalRewardSummary
from metta.sim.simulation import run_episodes
from metta.sim.statistics import lower_bound_of
from metta.train.sim_config import SimulationConfig

__all__ = ["Simulation", "SuiteResults", "run_suite", "unfit_spaces"]


@dataclass(frozen=True)
class Simulation:
    """What is played: everything that a configuration names, found and loaded."""

    task: Task
    num_episodes: int
    num_envs: int
    """Environments that play them at the same time; never more than there are episodes."""
    config: SimulationConfig = field(default_factory=SimulationConfig)
    """Who plays and for how long; its environment and number of episodes are those above."""
    npc_policy: Policy | None = None


@dataclass(frozen=True)
class SuiteResults:
    """Episodes of each simulation, and the simulations that were left out."""

    episodes: dict[str, EpisodeScores] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Simulation -> why it does not fit the policy."""

    @property
    def summary(self) -> EvalRewardSummary:
        """Scores by simulation and category, and how low the mean of the categories may be."""
        means = {name: scores.mean for name, scores in self.episodes.items()}
        returns = {name: scores.returns for name, scores in self.episodes.items()}
        return EvalRewardSummary(means, lower_bound_of(returns))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        episodes = {name: scores.to_dict() for name, scores in self.episodes.items()}
        return {"episodes": episodes, "left_out": dict(self.left_out)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SuiteResults":
        """Rebuild what `to_dict` returned."""
        episodes = {name: EpisodeScores.from_dict(one) for name, one in data["episodes"].items()}
        return cls(episodes, dict(data["left_out"]))


def run_suite(
    policy: Policy | HasPolicy,
    simulations: Mapping[str, Simulation],
    *,
    seed: int,
    skip_unfit: bool = False,
) -> SuiteResults:
    """Play every simulation by its name; one that does not fit the policy is an error, or left out.

    All have the same seed, so that a simulation's episodes do not depend on what else is in the suite. One
    that its time limit ends early warns; `EnvError` where it ended before any episode did.
    """
    found, policy = SuiteResults(), policy_of(policy)
    with global_generators_kept():
        for name, simulation in simulations.items():
            vec_env = _made(simulation)
            try:
                reason = unfit_spaces(policy, vec_env)
                if reason and not skip_unfit:
                    raise PolicyError(f"the policy cannot play {name!r}: {reason}")
                if reason:
                    found.left_out[name] = reason
                    continue
                found.episodes[name] = _played(policy, vec_env, simulation, name, seed)
            finally:
                vec_env.close()
    if not found.episodes and found.left_out:
        first = next(iter(found.left_out.values()))
        raise PolicyError(f"the policy fits no simulation of {list(simulations)}: {first}")
    return found


def _made(simulation: Simulation) -> VecEnv:
    num_envs = min(simulation.num_envs, simulation.num_episodes)
    return make_vec_env(simulation.task, num_envs=num_envs)


def _played(
    policy: Policy, vec_env: VecEnv, simulation: Simulation, name: str, seed: int
) -> EpisodeScores:
    config = simulation.config
    scores = run_episodes(
        policy,
        vec_env,
        simulation.num_episodes,
        seed=seed,
        greedy=config.greedy,
        max_seconds=config.max_seconds,
        npc_policy=simulation.npc_policy,
        policy_agents_pct=config.policy_agents_pct,
    )
    if not len(scores.returns):
        raise EnvError(
            f"no episode of {name!r} ended within max_seconds={config.max_seconds}; raise it, or cut "
            "episodes where the policy is trained: wrappers=[TimeLimit(1000)]"
        )
    if scores.num_missing:
        warnings.warn(
            f"{name!r} was ended by max_seconds={config.max_seconds}: {scores.num_missing} of "
            f"{simulation.num_episodes} episodes are missing, and its score leans towards short ones",
            MettaWarning,
            stacklevel=3,
        )
    return scores


def unfit_spaces(policy: Policy, vec_env: VecEnv) -> str:
    """Why a policy cannot play in an environment; empty if it can. Bounds of observations may differ."""
    if policy.obs_spec != vec_env.obs_spec:
        return f"it observes {policy.observation_space}, the environment gives {vec_env.observation_space}"
    if policy.action_space != vec_env.action_space:
        return (
            f"its actions are {policy.action_space}, the environment takes {vec_env.action_space}"
        )
    return ""
