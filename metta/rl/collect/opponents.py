"""Opponents: agents that are played by policies that do not learn, such as past selves of the learner."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.actor import EagerActor
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.vec_env import (
    FinalRows,
    ObsArrays,
    RestorableVecEnv,
    StepResult,
    VecEnv,
    agents_per_env,
    group_slices,
)
from metta.errors import ConfigError, StateError
from metta.seeding import numpy_generator

__all__ = ["OpponentPool", "OpponentVecEnv", "with_opponents"]


class OpponentPool:
    """The policies that opponents play: some fixed, and the newest past selves of the learner.

    pool = OpponentPool(policy, fixed=[champion], interval=20, size=8)
    """

    state_name = "opponents"
    state_version = 2

    def __init__(
        self, learner: Policy, fixed: Sequence[Policy] = (), *, interval: int = 0, size: int = 8
    ) -> None:
        for policy in fixed:
            if policy.obs_spec != learner.obs_spec or policy.action_space != learner.action_space:
                raise ConfigError(
                    f"an opponent is made for observations {policy.obs_spec.describe()} and actions "
                    f"{policy.action_space}, the learner for {learner.obs_spec.describe()} and "
                    f"{learner.action_space}"
                )
        self._template = _frozen(learner)
        self.fixed = [_frozen(policy) for policy in fixed]
        self.interval, self.size = interval, size
        self._begun = 0
        """The rollout that began last."""
        self.past: list[Policy] = [] if fixed else [_frozen(learner)]
        """Past selves; before the first one was added, the learner as it began."""
        self._num_past = len(self.past)

    @property
    def members(self) -> list[Policy]:
        """Every policy that an opponent may play; there is always one."""
        return [*self.fixed, *self.past]

    def begin_rollout(self, number: int, learner: Policy) -> None:
        """Add a copy of the learner at every multiple of the interval.

        If the pool is full, it replaces the oldest past self, also in unfinished episodes;
        the others keep their places, so that all other environments keep their opponent. Shards share
        a pool, and the first of them to begin a rollout adds the copy.
        """
        if number == self._begun or not self.interval or number % self.interval:
            return
        self._begun = number
        place = self._num_past % self.size
        self.past[place : place + 1] = [_frozen(learner)]
        self._num_past += 1

    def state_dict(self) -> dict[str, Any]:
        """The weights of past selves, and digests of the fixed opponents'."""
        return {
            "fixed": [policy.parameter_hash() for policy in self.fixed],
            "past": [dict(policy.state_dict()) for policy in self.past],
            "num_past": self._num_past,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if list(state["fixed"]) != [policy.parameter_hash() for policy in self.fixed]:
            raise StateError(
                "the fixed opponents have other weights than those of the saved run; name the very files "
                "that it had, not a selector such as run:best, which may have moved on"
            )
        past = []
        for weights in state["past"]:
            policy = _frozen(self._template)
            policy.load_state_dict(weights)
            past.append(policy)
        if not (past or self.fixed):
            raise StateError("the saved opponents are empty; the state is damaged")
        self.past, self._num_past, self._begun = past, int(state["num_past"]), 0


def _frozen(policy: Policy) -> Policy:
    """A copy that acts and never learns."""
    own = copy.deepcopy(policy).eval()
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    return own


def with_opponents(
    env: VecEnv, pool: OpponentPool, learner_share: float, *, seed: int, shard: int
) -> "OpponentVecEnv":
    """The environments of a shard without the agents that opponents play; at least one agent learns."""
    num_learners = max(1, round(agents_per_env(env) * learner_share))
    return OpponentVecEnv(env, pool, num_learners, seed=seed, shard=shard)


class OpponentVecEnv(VecEnvWrapper):
    """A `VecEnv` that shows the learner's agents only; opponents act for the others, behind it.

    In every environment, agents 0 to L - 1 learn. When an environment begins an episode, a member of the
    pool is drawn for all of its opponents.
    """

    def __init__(
        self, inner: VecEnv, pool: OpponentPool, num_learners: int, *, seed: int = 0, shard: int = 0
    ) -> None:
        self._agents = agents_per_env(inner)
        if not 1 <= num_learners < self._agents:
            raise ConfigError(
                f"{num_learners} of {self._agents} agents of an environment would learn; with opponents "
                f"it must be 1 to {self._agents - 1}: change learner_share, or the number of agents"
            )
        super().__init__(inner)
        self.pool, self._seed, self._shard = pool, seed, shard
        self.agents_per_env = num_learners
        self.num_envs = inner.num_rows // self._agents
        self.observation_space, self.obs_spec = inner.observation_space, inner.obs_spec
        self.num_rows = self.num_envs * num_learners
        is_learner = np.arange(inner.num_rows) % self._agents < num_learners
        self._groups = [
            _Group(inner, rows, is_learner[rows], self._agents)
            for rows in group_slices(inner.num_rows, inner.num_groups)
        ]
        self._num_episodes = np.zeros(self.num_envs, np.int64)
        self._steps = np.zeros(self.num_groups, np.int64)

    def begin_rollout(self, number: int, learner: Policy) -> None:
        """Let the pool see the learner."""
        self.pool.begin_rollout(number, learner)

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every environment, with the seeds of its learners' rows."""
        obs = self.obs_spec.zeros(self.inner.num_rows)
        every = np.repeat(np.asarray(seeds)[:: self.agents_per_env], self._agents)
        result = self.inner.reset(every.tolist(), obs)
        self._num_episodes.fill(0)
        self._steps.fill(0)
        learners = np.concatenate([group.learners + group.rows.start for group in self._groups])
        for group in self._groups:
            part = {key: leaf[group.rows] for key, leaf in obs.items()}
            group.see(part, np.ones(group.size, np.bool_), _rows_of(result.action_mask, group.rows))
            self._draw(group, np.ones(group.num_envs, np.bool_))
        for key, leaf in obs.items():
            obs_out[key][...] = leaf[learners]
        return _shown(result, learners)

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step: the learners' actions ``[n, ...]``, and those of their opponents."""
        part = self._groups[group]
        chosen = part.act(self.pool.members, self._noise(group, part.size))
        chosen[part.learners] = actions
        self.inner.send(group, chosen)
        self._steps[group] += 1

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step; the learners' observations are copied to `obs_out`."""
        part = self._groups[group]
        result = self.inner.recv(group, part.obs)
        part.see(part.obs, result.starts, result.action_mask)
        # an environment begins an episode when all of its agents do
        begun = np.asarray(result.starts.reshape(part.num_envs, self._agents).all(axis=1))
        if begun.any():
            self._num_episodes[part.envs][begun] += 1
            self._draw(part, begun)
        for key, leaf in part.obs.items():
            obs_out[key][...] = leaf[part.learners]
        return _shown(result, part.learners)

    def state_dict(self) -> dict[str, Any]:
        """The state of the environments, and what opponents saw, remember and play."""
        if not isinstance(self.inner, RestorableVecEnv):
            return {"class": "boundary"}
        state = self.inner.state_dict()
        if state["class"] == "boundary":
            return state
        own = {
            "num_episodes": self._num_episodes.copy(),
            "steps": self._steps.copy(),
            "groups": [group.state_dict() for group in self._groups],
        }
        return {**state, "opponents": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore what `state_dict` returned."""
        if not isinstance(self.inner, RestorableVecEnv):
            raise StateError(f"{type(self.inner).__name__} cannot restore its state")
        seen = self.inner.load_state_dict(
            {key: part for key, part in state.items() if key != "opponents"}
        )
        own = state.get("opponents")
        if own is None:
            return None
        try:
            self._num_episodes[:], self._steps[:] = own["num_episodes"], own["steps"]
            for group, saved in zip(self._groups, own["groups"], strict=True):
                group.load_state_dict(saved, len(self.pool.members))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"the saved opponents do not fit these environments: {error}"
            ) from error
        if seen is None:
            return None
        learners = np.concatenate([group.learners + group.rows.start for group in self._groups])
        return {key: leaf[learners] for key, leaf in seen.items()}

    def _draw(self, group: "_Group", begun: np.ndarray) -> None:
        """Choose the opponents of the learners in environments that began an episode."""
        for index in np.flatnonzero(begun).tolist():
            env = group.envs.start + index
            episode = int(self._num_episodes[env])
            generator = numpy_generator(
                self._seed, "opponent", rank=self._shard, epoch=episode, index=env
            )
            group.member[index] = generator.integers(len(self.pool.members))

    def _noise(self, group: int, num_rows: int) -> np.ndarray:
        step = int(self._steps[group])
        generator = numpy_generator(
            self._seed, "opponent noise", rank=self._shard, epoch=step, index=group
        )
        noise: np.ndarray = draw_noise(self.pool.members[0].action_spec, generator, 1, num_rows)[0]
        return noise


class _Group:
    """One group of environments: what their agents see, and which policies play the opponents."""

    def __init__(self, inner: VecEnv, rows: slice, is_learner: np.ndarray, agents: int) -> None:
        self.rows, self.size = rows, rows.stop - rows.start
        self.envs = slice(rows.start // agents, rows.stop // agents)
        self.num_envs = self.size // agents
        self.learners, self.others = np.flatnonzero(is_learner), np.flatnonzero(~is_learner)
        self._env_of = self.others // agents
        self.member = np.zeros(self.num_envs, np.int64)
        """Which member of the pool plays in each environment."""
        self.obs = inner.obs_spec.zeros(self.size)
        self._starts = np.ones(self.size, np.bool_)
        self._masks: np.ndarray | None = None
        self._states: dict[int, State] = {}
        space = inner.action_space
        self._actions = np.zeros((self.size, *(space.shape or ())), space.dtype)

    def see(self, obs: ObsArrays, starts: np.ndarray, masks: np.ndarray | None) -> None:
        for key, leaf in obs.items():
            if leaf is not self.obs[key]:
                self.obs[key][...] = leaf
        self._starts[:] = starts
        self._masks = None if masks is None else masks.copy()

    @torch.no_grad()
    def act(self, members: Sequence[Policy], noise: np.ndarray) -> np.ndarray:
        """Actions of all opponents, in the action space's units; learners' places are free."""
        playing = self.member[self._env_of]
        for number in np.unique(playing).tolist():
            policy, is_playing = members[number], playing == number
            state = self._states.get(number)
            if state is None:
                state = policy.initial_state(len(self.others))
            # recurrent states cover every opponent; without them, only the rows of this member are computed
            rows = self.others if state else self.others[is_playing]
            produced, state = EagerActor(policy).act(
                {key: leaf[rows] for key, leaf in self.obs.items()},
                state,
                self._starts[rows],
                None if self._masks is None else self._masks[rows],
                noise[rows],
            )
            if state:
                self._states[number] = state
            action = policy.action_spec.to_env(produced["action"].cpu().numpy())
            self._actions[self.others[is_playing]] = action[is_playing] if state else action
        return self._actions.copy()

    def state_dict(self) -> dict[str, Any]:
        return {
            "member": self.member.copy(),
            "obs": {key: leaf.copy() for key, leaf in self.obs.items()},
            "starts": self._starts.copy(),
            "masks": None if self._masks is None else self._masks.copy(),
            "states": [[number, dict(state)] for number, state in sorted(self._states.items())],
        }

    def load_state_dict(self, state: Mapping[str, Any], num_members: int) -> None:
        self.member[:] = state["member"]
        if (self.member < 0).any() or (self.member >= num_members).any():
            raise ValueError(f"they are played by members {self.member} of {num_members}")
        for key, leaf in self.obs.items():
            leaf[...] = state["obs"][key]
        self._starts[:] = state["starts"]
        masks = state["masks"]
        self._masks = None if masks is None else np.asarray(masks, np.bool_)
        self._states = {int(number): dict(saved) for number, saved in state["states"]}


def _rows_of(array: np.ndarray | None, rows: slice) -> np.ndarray | None:
    return None if array is None else array[rows]


def _shown(result: StepResult, rows: np.ndarray) -> StepResult:
    """What learners see of a step: some of its rows."""
    place = np.full(len(result.rewards), -1)
    place[rows] = np.arange(len(rows))
    final = None
    if result.final is not None and (place[result.final.rows] >= 0).any():
        kept = place[result.final.rows] >= 0
        obs = {key: leaf[kept] for key, leaf in result.final.obs.items()}
        final = FinalRows(place[result.final.rows[kept]], obs)
    lost = None
    if result.lost is not None:
        lost = place[result.lost]
        lost = lost[lost >= 0]
    return StepResult(
        rewards=result.rewards[rows],
        terminated=result.terminated[rows],
        truncated=result.truncated[rows],
        valid=result.valid[rows],
        starts=result.starts[rows],
        action_mask=None if result.action_mask is None else result.action_mask[rows],
        final=final,
        infos=[(int(place[row]), n) for row, n in result.infos if place[row] >= 0],
        lost=lost,
    )
