"""`PolicyEvaluator`: scores of a policy on fresh episodes."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from metta.agent.policy import Policy
from metta.agent.policy_record import HasPolicy
from metta.curriculum import Task
from metta.envs.factory import exists_already
from metta.errors import ConfigError, MettaWarning, PolicyError
from metta.replays.file import remove_leftovers, replay_name, save_replay
from metta.replays.recording import record_episode
from metta.replays.replay import Replay
from metta.seeding import derive_seed
from metta.sim.episode_scores import EpisodeScores
from metta.sim.scores import EvalRewardSummary
from metta.sim.statistics import Estimate, estimate, mean_of_means
from metta.sim.suite import Simulation, SuiteResults, run_suite
from metta.store.policy_store import PolicyStore
from metta.train.run_config import EvaluationConfig
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig, find_suite

__all__ = ["PolicyEvaluator", "Recorded", "estimates_of", "require_own_env", "warn_of_missing"]

_CATEGORY = "training"


def require_own_env(task: Task) -> None:
    """Refuse an environment that exists already: playing in it would disturb training there."""
    if exists_already(task.env):
        raise ConfigError(
            f"evaluation needs its own environments, but {task.name} exists already; give an id or a "
            "factory, or turn evaluation off with eval_episodes=0"
        )


def estimates_of(results: SuiteResults, *, seed: int = 0) -> dict[str, Estimate]:
    """Score and 95 % interval of each simulation, and of each category under its name alone."""
    found: dict[str, Estimate] = {}
    by_category: dict[str, list[str]] = {}
    for name, scores in results.episodes.items():
        found[name] = estimate(mean_of_means, [scores.returns], seed=seed)
        by_category.setdefault(name.partition("/")[0], []).append(name)
    for category, names in by_category.items():
        strata = [results.episodes[name].returns for name in names]
        found[category] = estimate(mean_of_means, strata, seed=seed)
    return found


@dataclass(frozen=True)
class Recorded:
    """Replays that were written, and those that could not be."""

    files: dict[str, str] = field(default_factory=dict)
    """Simulation -> path of its replay."""
    failures: dict[str, str] = field(default_factory=dict)
    """Simulation -> why it has no replay."""

    def warn(self, epoch: int) -> None:
        """Warn of missing replays; they are never an error."""
        for name, why in self.failures.items():
            warnings.warn(
                f"no replay of {name!r} at epoch {epoch}: {why}; scores and training are not affected",
                MettaWarning,
                stacklevel=3,
            )


def warn_of_missing(results: SuiteResults, epoch: int) -> None:
    """Warn of episodes that were not played because a simulation reached its time limit."""
    missing = {name: one.num_missing for name, one in results.episodes.items() if one.num_missing}
    if missing:
        warnings.warn(
            f"simulations of epoch {epoch} were ended by their time limit; missing episodes: "
            f"{missing}",
            MettaWarning,
            stacklevel=3,
        )


class PolicyEvaluator:
    """Plays episodes in its own environments and never touches those that train.

        evaluator = PolicyEvaluator("CartPole-v1", EvaluationConfig(eval_episodes=20))
        scores = evaluator.evaluate(policy)

    The first argument is a `SimulationSuiteConfig`, or the training task: a gymnasium id, a `Task`, or a
    factory. The task is played as ``training/<name>``, and the suite that `config` names beside it.
    `training_task` is what simulations without their own environment play, if a whole suite is
    given. Every evaluation plays the same episodes, so that scores of different moments can be compared;
    environments are made for each and closed after it. Policies of other agents (`npc_policy_uri`) are
    found in `policy_store` when they are first needed, and kept.
    """

    def __init__(
        self,
        env: Any,
        config: EvaluationConfig | None = None,
        *,
        seed: int = 0,
        training_task: Task | None = None,
        policy_store: PolicyStore | None = None,
    ) -> None:
        self.config = config or EvaluationConfig()
        self.seed = derive_seed(seed, "evaluation")
        self.policy_store = policy_store or PolicyStore("runs")
        self.suite = env if isinstance(env, SimulationSuiteConfig) else self._own_suite()
        self.task = training_task
        if not isinstance(env, SimulationSuiteConfig):
            self.task = env if isinstance(env, Task) else Task(env)
            own = {self.simulation: SimulationConfig()}
            simulations = {**own, **self.suite.simulations}
            self.suite = dataclasses.replace(self.suite, simulations=simulations)
        self.tasks = {name: self._task_of(name) for name in self.suite.simulations}
        """What each simulation plays."""
        self._npc_policies: dict[str, Policy] = {}
        self.results = SuiteResults()
        """Episodes of the last evaluation."""

    def _own_suite(self) -> SimulationSuiteConfig:
        name = self.config.suite
        return SimulationSuiteConfig(name=_CATEGORY) if name is None else find_suite(name)

    @property
    def simulation(self) -> str:
        """Name under which the training task is played: ``category/simulation``."""
        return f"{_CATEGORY}/{self.task.name if self.task is not None else ''}"

    @property
    def last(self) -> EpisodeScores | None:
        """Episodes of the training task in the last evaluation; of the first simulation without one."""
        episodes = self.results.episodes
        return episodes.get(self.simulation, next(iter(episodes.values()), None))

    def evaluate(self, policy: Policy | HasPolicy) -> EvalRewardSummary:
        """Scores of every simulation; none where `eval_episodes` is 0."""
        if self.config.eval_episodes == 0:
            return EvalRewardSummary()
        return self.play(policy).summary

    def play(self, policy: Policy | HasPolicy) -> SuiteResults:
        """Play the whole suite; the episodes are also kept as `results`."""
        simulations = {
            name: self._simulation(name, config) for name, config in self.suite.simulations.items()
        }
        skip = self.suite.skip_unfit
        self.results = run_suite(policy, simulations, seed=self.seed, skip_unfit=skip)
        return self.results

    def record(
        self,
        policy: Policy | HasPolicy,
        folder: str | os.PathLike[str],
        *,
        epoch: int = 0,
        agent_step: int = 0,
        policy_uri: str | None = None,
    ) -> Recorded:
        """Write a replay of each simulation's first episode to a folder; failures are only reported.

        Each is played again in a separate environment, with the seed of `play`: see
        `record_episode` for when it is the same episode to the bit.
        """
        about = {"epoch": epoch, "agent_step": agent_step, "policy_uri": policy_uri}
        found = Recorded()
        remove_leftovers(folder)
        for name, config in self.suite.simulations.items():
            try:
                replay = self._recorded(policy, name, config, about)
                if replay is not None:
                    path = Path(folder).absolute() / replay_name(epoch, name)
                    if str(path) in found.files.values():
                        path = path.with_name(replay_name(epoch, name, is_taken=True))
                    found.files[name] = str(save_replay(path, replay))
            except Exception as error:  # noqa: BLE001  # a replay must not cost a run
                found.failures[name] = f"{type(error).__name__}: {error}"
        return found

    def _recorded(
        self,
        policy: Policy | HasPolicy,
        name: str,
        config: SimulationConfig,
        about: Mapping[str, Any],
    ) -> Replay | None:
        simulation = self._simulation(name, config)
        try:
            return record_episode(
                policy,
                simulation.task,
                seed=self.seed,
                greedy=config.greedy,
                npc_policy=simulation.npc_policy,
                policy_agents_pct=config.policy_agents_pct,
                max_seconds=config.max_seconds,
                max_steps=self.config.replay_max_steps,
                simulation=name,
                **about,
            )
        except PolicyError:
            if self.suite.skip_unfit:
                return None
            raise

    def statistics(self) -> dict[str, Estimate]:
        """Scores of the last evaluation with their intervals; see `estimates_of`."""
        return estimates_of(self.results, seed=self.seed)

    def _simulation(self, name: str, config: SimulationConfig) -> Simulation:
        task, episodes = self.tasks[name], config.num_episodes or self.config.eval_episodes
        require_own_env(task)
        npc_policy = self._npc_policy(config.npc_policy_uri, task)
        return Simulation(task, episodes, self.config.eval_envs, config, npc_policy)

    def _task_of(self, name: str) -> Task:
        config = self.suite.simulations[name]
        if config.env is not None:
            wrappers = () if self.task is None else self.task.wrappers
            return Task(config.env, dict(config.env_kwargs), wrappers=wrappers)
        if self.task is None:
            raise ConfigError(
                f"simulation {name!r} of the suite {self.suite.name!r} has no env, and there is no "
                "training task to play instead; give it an env"
            )
        return dataclasses.replace(
            self.task, env_kwargs={**self.task.env_kwargs, **config.env_kwargs}
        )

    def _npc_policy(self, uri: str | None, task: Task) -> Policy | None:
        if uri is None:
            return None
        if uri not in self._npc_policies:
            loaded = self.policy_store.load(uri, task).policy
            assert loaded is not None, "load gives the policy"
            self._npc_policies[uri] = loaded
        return self._npc_policies[uri]

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which begins without what was loaded and played here.

        Environments that a script has registered are known there too.
        """
        names = [str(task.env).rpartition(":")[2] for task in self.tasks.values()]
        specs = {name: gymnasium.registry[name] for name in names if name in gymnasium.registry}
        unloaded = {"_npc_policies": {}, "results": SuiteResults()}
        return {**vars(self), **unloaded, "_specs": specs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, spec in state.pop("_specs").items():
            gymnasium.registry.setdefault(name, spec)
        vars(self).update(state)
