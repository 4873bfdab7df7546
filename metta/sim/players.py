"""Who plays which agents: one policy for all of them, or two that share every environment."""

from collections.abc import Sequence

import numpy as np
import torch

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.actor import make_actor
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.envs.vec_env import ObsArrays, VecEnv, agents_per_env, group_slices
from metta.errors import ConfigError
from metta.seeding import numpy_generator

__all__ = ["Player", "act_together", "evaluated_agents"]


def evaluated_agents(num_agents: int, share: float, *, has_npc: bool) -> np.ndarray:
    """``[A]`` which agents of an environment the evaluated policy plays: the first ones.

    With another policy beside it, each plays one agent at least.
    """
    if not has_npc:
        if share != 1.0:
            raise ConfigError(
                f"policy_agents_pct={share:g} leaves agents to another policy; give npc_policy too"
            )
        return np.ones(num_agents, bool)
    if num_agents < 2:
        raise ConfigError(
            "two policies cannot share an environment with one agent; use an environment with more agents, "
            "or leave the npc policy out"
        )
    count = min(max(round(share * num_agents), 1), num_agents - 1)
    return np.arange(num_agents) < count


class Player:
    """A policy that acts for the same agents of every environment."""

    def __init__(
        self, policy: Policy, vec_env: VecEnv, agents: np.ndarray, *, greedy: bool, seed: int
    ) -> None:
        groups = group_slices(vec_env.num_rows, vec_env.num_groups)
        size = vec_env.num_rows // vec_env.num_groups
        mine = np.tile(agents, size // agents_per_env(vec_env))
        self.policy, self.greedy = policy, greedy
        self.rows: slice | np.ndarray = slice(None) if mine.all() else np.flatnonzero(mine)
        """Within a group."""
        # only the eager actor returns the distribution whose mode is wanted
        self._actor = make_actor("eager" if greedy else "auto", policy, int(mine.sum()))
        self._states: list[State] = [policy.initial_state(int(mine.sum())) for _ in groups]
        self._seed, self._num_rows = seed, vec_env.num_rows
        self._noise = np.zeros((0, 0), np.float32)

    def begin_step(self, step: int) -> None:
        """Draw what is random in this step: a function of the seed and the step alone."""
        generator = numpy_generator(self._seed, "evaluation", epoch=step)
        self._noise = draw_noise(self.policy.action_spec, generator, 1, self._num_rows)[0]

    def act(
        self,
        group: int,
        rows: slice,
        obs: ObsArrays,
        starts: np.ndarray,
        masks: np.ndarray | None,
    ) -> np.ndarray:
        """Actions for this player's rows of a group, in the environment's units."""
        mask = None if masks is None else masks[self.rows]
        seen = {key: leaf[self.rows] for key, leaf in obs.items()}
        produced, self._states[group] = self._actor.act(
            seen, self._states[group], starts[self.rows], mask, self._noise[rows][self.rows]
        )
        action, spec = produced["action"], self.policy.action_spec
        if self.greedy:
            legal = None if mask is None else torch.from_numpy(mask).to(self.policy.device)
            action = spec.mode(produced["dist_params"], legal)
        return spec.to_env(action.cpu().numpy())


def act_together(
    players: Sequence[Player],
    group: int,
    rows: slice,
    obs: ObsArrays,
    starts: np.ndarray,
    masks: np.ndarray | None,
) -> np.ndarray:
    """Actions ``[n, ...]`` of all agents in a group."""
    first, *others = players
    own = first.act(group, rows, obs, starts, masks)
    if not others:
        return own
    actions = np.empty((len(starts), *own.shape[1:]), own.dtype)
    actions[first.rows] = own
    for player in others:
        actions[player.rows] = player.act(group, rows, obs, starts, masks)
    return actions
