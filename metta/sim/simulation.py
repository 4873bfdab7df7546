"""Policy + environment -> scores of whole episodes."""

from dataclasses import dataclass

import numpy as np
import torch

from metta.agent.action_spec import draw_noise
from metta.agent.actors import make_actor
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.envs.factory import row_seeds
from metta.envs.vec_env import VecEnv, group_slices
from metta.errors import ConfigError, EnvError
from metta.seeding import numpy_generator

__all__ = ["EpisodeScores", "run_episodes"]


@dataclass(frozen=True)
class EpisodeScores:
    """Returns and lengths of finished episodes, in the order in which they started."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())


@torch.no_grad()
def run_episodes(
    policy: Policy,
    vec_env: VecEnv,
    num_episodes: int,
    *,
    seed: int,
    greedy: bool = False,
    max_steps: int = 1_000_000,
) -> EpisodeScores:
    """Play the first `num_episodes` episodes that *start*, to their end; training is not touched.

    Counting by start keeps short episodes from crowding out long ones. `greedy` takes the most likely
    action instead of a sample.
    """
    if num_episodes < 1:
        raise ConfigError(f"num_episodes={num_episodes}; it must be at least 1")
    with evaluating(policy):
        return _play(policy, vec_env, num_episodes, seed, greedy, max_steps)


class _Ledger:
    """Which episode each row is in, and what it has earned."""

    def __init__(self, num_rows: int, num_episodes: int) -> None:
        self.returns = np.zeros(num_episodes)
        self.lengths = np.zeros(num_episodes, np.int64)
        self.episode = np.full(num_rows, -1)
        self.next_episode = 0
        self.unfinished = num_episodes
        for row in range(num_rows):
            self.start(row)

    def start(self, row: int) -> None:
        """Give a row the next episode, or none where enough have started."""
        started = self.next_episode < len(self.returns)
        self.episode[row] = self.next_episode if started else -1
        self.next_episode += started

    def record(self, rewards: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> None:
        """Take in one step of all rows."""
        playing = (self.episode >= 0) & valid
        # rows hold distinct episodes, so fancy indexing adds each reward once
        self.returns[self.episode[playing]] += rewards[playing]
        self.lengths[self.episode[playing]] += 1
        for row in np.flatnonzero(ended & playing):
            self.unfinished -= 1
            self.start(int(row))


def _play(
    policy: Policy, vec_env: VecEnv, num_episodes: int, seed: int, greedy: bool, max_steps: int
) -> EpisodeScores:
    groups = group_slices(vec_env.num_rows, vec_env.num_groups)
    # only the eager actor tells the distribution whose mode is wanted
    actor = make_actor("eager" if greedy else "auto", policy, groups[0].stop)
    obs = vec_env.obs_spec.zeros(vec_env.num_rows)
    result = vec_env.reset(row_seeds(seed, vec_env.num_rows), obs)
    starts, masks = np.ones(vec_env.num_rows, bool), result.action_mask
    masks = None if masks is None else masks.copy()
    states: list[State] = [policy.initial_state(rows.stop - rows.start) for rows in groups]
    ledger = _Ledger(vec_env.num_rows, num_episodes)
    rewards = np.zeros(vec_env.num_rows)
    valid, ended = np.zeros(vec_env.num_rows, bool), np.zeros(vec_env.num_rows, bool)
    for step in range(max_steps):
        generator = numpy_generator(seed, "evaluation", epoch=step)
        noise = draw_noise(policy.action_spec, generator, 1, vec_env.num_rows)[0]
        for group, rows in enumerate(groups):
            mask = None if masks is None else masks[rows]
            seen = {key: leaf[rows] for key, leaf in obs.items()}
            produced, states[group] = actor.act(
                seen, states[group], starts[rows], mask, noise[rows]
            )
            action = produced["action"]
            if greedy:
                legal = None if mask is None else torch.from_numpy(mask).to(policy.device)
                action = policy.action_spec.mode(produced["dist_params"], legal)
            vec_env.send(group, policy.action_spec.to_env(action.cpu().numpy()))
            result = vec_env.recv(group, seen)
            rewards[rows], valid[rows] = result.rewards, result.valid
            ended[rows] = result.terminated | result.truncated
            starts[rows] = result.starts
            if masks is not None:
                masks[rows] = result.action_mask
        ledger.record(rewards, valid, ended)
        if ledger.unfinished == 0:
            return EpisodeScores(ledger.returns, ledger.lengths)
    raise EnvError(
        f"{ledger.unfinished} of {num_episodes} episodes had not ended after {max_steps:,} steps; "
        "give the environment a time limit, or raise max_steps"
    )
