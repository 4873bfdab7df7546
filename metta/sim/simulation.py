"""Policy + environment -> scores of whole episodes."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from metta.agent.evaluation_mode import evaluating
from metta.agent.policy import Policy
from metta.agent.policy_record import HasPolicy, policy_of
from metta.envs.factory import row_seeds
from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.vec_env import ObsArrays, StepResult, VecEnv, agents_per_env, group_slices
from metta.errors import ConfigError, EnvError, MettaWarning
from metta.seeding import derive_seed
from metta.sim.episode_scores import EpisodeLedger, EpisodeScores
from metta.sim.players import Player, act_together, evaluated_agents

__all__ = ["EpisodeScores", "Observer", "run_episodes"]

_LONG_EPISODE = 30_000
"""Steps; the longest games of Atari have 27,000."""
_CUT = "cut them where the policy is trained: wrappers=[TimeLimit(1000)]"

Observer = Callable[[slice, ObsArrays, np.ndarray, StepResult], None]
"""Called after each step of a group: its rows, observations, actions and the result.

Observations ``[n, ...]`` are those that the actions ``[n, ...]`` were chosen for, as a copy;
arrays of the result are valid until the next step of the group.
"""


@torch.no_grad()
def run_episodes(  # noqa: PLR0913  # what is played, then how: by name
    policy: Policy | HasPolicy,
    vec_env: VecEnv,
    num_episodes: int,
    *,
    seed: int,
    greedy: bool = False,
    max_steps: int = 1_000_000,
    max_seconds: float | None = None,
    npc_policy: Policy | None = None,
    policy_agents_pct: float = 1.0,
    observer: Observer | None = None,
) -> EpisodeScores:
    """Play the first `num_episodes` episodes that *start*, to their end; training is not touched.

    `policy` may also be what `metta.load_policy` returned: it then plays with a state of its own.
    Counting by start keeps short episodes from crowding out long ones. `greedy` takes the most likely
    action instead of a sample. After `max_seconds` it ends with the episodes that are finished, and
    ``num_missing`` of the result counts the others. `npc_policy` plays the agents of each environment
    that `policy_agents_pct` leaves to it. An environment's episode is that of all its agents.
    """
    policy = policy_of(policy)
    if num_episodes < 1:
        raise ConfigError(f"num_episodes={num_episodes}; it must be at least 1")
    evaluated = evaluated_agents(
        agents_per_env(vec_env), policy_agents_pct, has_npc=npc_policy is not None
    )
    with ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        stack.enter_context(evaluating(policy))
        players = [Player(policy, vec_env, evaluated, greedy=greedy, seed=seed)]
        if npc_policy is not None:
            stack.enter_context(evaluating(npc_policy))
            npc_seed = derive_seed(seed, "npc")
            players.append(Player(npc_policy, vec_env, ~evaluated, greedy=greedy, seed=npc_seed))
        ledger = EpisodeLedger(vec_env.num_rows // len(evaluated), num_episodes, evaluated)
        stage = _Stage(vec_env, players, ledger, seed)
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        look = _LONG_EPISODE  # the first step in which an episode can be too long
        for step in range(max_steps):
            stage.step(step, observer)
            is_late = deadline is not None and time.monotonic() >= deadline
            if ledger.num_unfinished == 0 or is_late:
                return ledger.scores()
            if step == look:
                left = _LONG_EPISODE - ledger.longest_unfinished
                look = step + left + 1 if left >= 0 else max_steps  # it is said once
                if left < 0:
                    warnings.warn(_unended(max_steps), MettaWarning, stacklevel=2)
    raise EnvError(
        f"{ledger.num_unfinished} of {num_episodes} episodes had not ended after {max_steps:,} steps; "
        f"{_CUT}, or raise max_steps"
    )


def _unended(max_steps: int) -> str:
    return (
        f"an episode has not ended after {_LONG_EPISODE:,} steps; evaluation waits for it, up to "
        f"{max_steps:,} steps in all: if episodes need not end, {_CUT}"
    )


class _Stage:
    """Environments, what their agents see now, and the players."""

    def __init__(
        self, vec_env: VecEnv, players: Sequence[Player], ledger: EpisodeLedger, seed: int
    ) -> None:
        self._vec_env, self._players, self._ledger = vec_env, players, ledger
        self._groups = group_slices(vec_env.num_rows, vec_env.num_groups)
        self._num_agents = agents_per_env(vec_env)
        self._obs = vec_env.obs_spec.zeros(vec_env.num_rows)
        result = vec_env.reset(row_seeds(seed, vec_env.num_rows), self._obs)
        self._starts = np.ones(vec_env.num_rows, bool)
        self._masks = None if result.action_mask is None else result.action_mask.copy()

    def step(self, step: int, observer: Observer | None) -> None:
        """One step of every group."""
        for player in self._players:
            player.begin_step(step)
        for group, rows in enumerate(self._groups):
            masks = None if self._masks is None else self._masks[rows]
            seen = {key: leaf[rows] for key, leaf in self._obs.items()}
            actions = act_together(self._players, group, rows, seen, self._starts[rows], masks)
            before = None if observer is None else {k: leaf.copy() for k, leaf in seen.items()}
            self._vec_env.send(group, actions)
            result = self._vec_env.recv(group, seen)
            self._starts[rows] = result.starts
            if self._masks is not None:
                self._masks[rows] = result.action_mask
            self._ledger.record(rows.start // self._num_agents, result)
            if observer is not None and before is not None:
                observer(rows, before, actions, result)
