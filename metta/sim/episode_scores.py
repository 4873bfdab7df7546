"""Results of whole episodes: returns and lengths, by episode and by agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metta.envs.vec_env import LIFE_LOST, StepResult

__all__ = ["AgentResults", "EpisodeLedger", "EpisodeScores"]

_MAX_LOGGED = 2048
"""Limit on agents times episodes of one simulation that an event log holds agent by agent."""


@dataclass(frozen=True)
class AgentResults:
    """Finished episodes agent by agent, in the order in which they started."""

    returns: np.ndarray
    """``[E, A]``"""
    lengths: np.ndarray
    """``[E, A]`` steps that each agent acted in; 0: it was never present."""
    evaluated: np.ndarray
    """``[A]`` bool: the agents that the evaluated policy played."""
    infos: list[list[dict[str, float]]] = field(default_factory=list)
    """The environment's own numbers at the end of each episode, by agent."""

    @property
    def is_worth_logging(self) -> bool:
        """Whether they add to what the episodes show, and are few enough for a log."""
        adds_detail = len(self.evaluated) > 1 or any(info for infos in self.infos for info in infos)
        return adds_detail and self.returns.size <= _MAX_LOGGED

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("returns", "lengths", "evaluated")
        arrays = {name: getattr(self, name).tolist() for name in names}
        return {**arrays, "infos": self.infos}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "AgentResults":
        """Rebuild what `to_dict` returned."""
        evaluated = np.array(data["evaluated"], bool)
        shape = (-1, len(evaluated))
        returns = np.array(data["returns"], np.float64).reshape(shape)
        lengths = np.array(data["lengths"], np.int64).reshape(shape)
        return cls(returns, lengths, evaluated, list(data["infos"]))


@dataclass(frozen=True)
class EpisodeScores:
    """Returns and lengths of finished episodes, in the order in which they started.

    Of an environment with many agents the return is the mean over those that the evaluated policy played
    and that were present at all (0 if none was), the length that of the whole episode.
    """

    returns: np.ndarray
    lengths: np.ndarray
    num_missing: int = 0
    """Episodes that were asked for and did not end within the time limit. Long ones are missing rather
    than short ones, so that scores with missing episodes lean towards those of short episodes."""
    agents: AgentResults | None = None

    @property
    def mean(self) -> float:
        """Mean return; NaN where no episode ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = self._of_episodes()
        return found if self.agents is None else {**found, "agents": self.agents.to_dict()}

    def summary(self) -> dict[str, Any]:
        """Plain data for an event log; single agents are included if that adds something and is small."""
        is_logged = self.agents is not None and self.agents.is_worth_logging
        return self.to_dict() if is_logged else self._of_episodes()

    def _of_episodes(self) -> dict[str, Any]:
        found = {"returns": self.returns.tolist(), "lengths": self.lengths.tolist()}
        return {**found, "num_missing": self.num_missing}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EpisodeScores":
        """Rebuild what `to_dict` returned."""
        agents = data.get("agents")
        return cls(
            np.array(data["returns"], np.float64),
            np.array(data["lengths"], np.int64),
            int(data["num_missing"]),
            None if agents is None else AgentResults.from_dict(agents),
        )


class EpisodeLedger:
    """Which episode each environment is in, and what its agents have earned.

    Episodes are numbered in the order in which they start; those beyond the first `num_episodes` are
    ignored, however short they are. An episode is over when the next one has begun.
    """

    def __init__(self, num_envs: int, num_episodes: int, evaluated: np.ndarray) -> None:
        shape = (num_episodes, len(evaluated))
        self._evaluated = evaluated
        self._returns = np.zeros(shape)
        self._agent_lengths = np.zeros(shape, np.int64)
        self._lengths = np.zeros(num_episodes, np.int64)
        self._infos: list[list[dict[str, float]]] = [[{} for _ in evaluated] for _ in self._lengths]
        self._is_finished = np.zeros(num_episodes, bool)
        self._episode = np.full(num_envs, -1)
        self._next_episode = 0
        for env in range(num_envs):
            self._start(env)

    @property
    def num_unfinished(self) -> int:
        """Episodes that are still to end."""
        return int((~self._is_finished).sum())

    @property
    def longest_unfinished(self) -> int:
        """Steps of the longest episode that is still to end."""
        return int(self._lengths[~self._is_finished].max(initial=0))

    def _start(self, env: int) -> None:
        """Give an environment the next episode, or none if enough have started."""
        counts = self._next_episode < len(self._lengths)
        self._episode[env] = self._next_episode if counts else -1
        self._next_episode += counts

    def record(self, first_env: int, result: StepResult) -> None:
        """Record one step of some neighbouring environments."""
        num_agents = len(self._evaluated)
        valid = result.valid.reshape(-1, num_agents)
        rewards = np.where(valid, result.rewards.reshape(-1, num_agents), 0.0)
        episodes = self._episode[first_env : first_env + len(valid)]
        playing = episodes >= 0
        # environments are in distinct episodes, so fancy indexing adds each reward once
        self._returns[episodes[playing]] += rewards[playing]
        self._agent_lengths[episodes[playing]] += valid[playing]
        self._lengths[episodes[playing]] += valid[playing].any(-1)
        for row, numbers in result.infos:
            env, agent = divmod(row, num_agents)
            if playing[env] and LIFE_LOST not in numbers:
                self._infos[episodes[env]][agent].update(numbers)
        begun = result.starts.reshape(-1, num_agents).all(-1)
        lost = set() if result.lost is None else set((result.lost // num_agents).tolist())
        for env in np.flatnonzero(begun & playing).tolist():
            if env in lost:
                self._begin_again(episodes[env])
            else:
                self._is_finished[episodes[env]] = True
                self._start(first_env + env)

    def _begin_again(self, episode: int) -> None:
        """Its process died: the fresh episode takes its place."""
        self._returns[episode], self._agent_lengths[episode] = 0.0, 0
        self._lengths[episode] = 0
        self._infos[episode] = [{} for _ in self._evaluated]

    def scores(self) -> EpisodeScores:
        """The episodes that are finished."""
        done = np.flatnonzero(self._is_finished)
        infos = [self._infos[episode] for episode in done]
        agents = AgentResults(
            self._returns[done], self._agent_lengths[done], self._evaluated.copy(), infos
        )
        counted = self._evaluated & (agents.lengths > 0)
        totals = np.where(counted, agents.returns, 0.0).sum(-1)
        returns = totals / np.maximum(counted.sum(-1), 1)
        return EpisodeScores(returns, self._lengths[done], self.num_unfinished, agents)
