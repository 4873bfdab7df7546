"""The learner sees the very distributions that the actions were drawn from."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.collect.rollout_data import STATE_PREFIX
from metta.rl.learn.driver import cut_minibatch, num_items
from metta.spaces import MASK_KEY
from metta.train.train_config import AgentConfig

HORIZON, SEGMENT, NUM_ROLLOUTS = 8, 4, 3
ENDS = (
    ((3, "terminated"), (4, "truncated"), (1, "terminated"), (9, "truncated")),
    ((4, "terminated"), (4, "truncated"), (2, "truncated"), (30, "terminated")),
    ((1, "truncated"), (1, "terminated"), (6, "both"), (8, "truncated")),
    ((1, "terminated"), (50, "truncated")),
)
"""Per row: lengths of its episodes and how they end, over and over."""


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Random observations; episodes end as written."""

    def __init__(self, ends: tuple[tuple[int, str], ...], *, masked: bool, boxed: bool) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if boxed else spaces.Discrete(4)
        self.ends, self.masked = ends, masked
        self.episode, self.steps = -1, 0

    def _observe(self) -> tuple[np.ndarray, dict[str, Any]]:
        observation = self.np_random.normal(size=3).astype(np.float32)
        self.legal = self.np_random.random(4) < 0.5
        self.legal[self.np_random.integers(4)] = True
        return observation, {MASK_KEY: self.legal} if self.masked else {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.episode = -1
        self.episode, self.steps = self.episode + 1, 0
        return self._observe()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.masked and not self.legal[action]:
            raise ValueError(f"illegal action {action}")
        self.steps += 1
        length, how = self.ends[self.episode % len(self.ends)]
        over = self.steps == length
        observation, info = self._observe()
        reward = float(self.np_random.normal())
        return observation, reward, over and how != "truncated", over and how != "terminated", info


class RecordingSpec:
    """An action specification that keeps every distribution an action was really drawn from."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.drawn: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        action = self.spec.sample(params, noise, mask)
        kept = None if mask is None else mask.clone()
        self.drawn.append((params.clone(), action.clone(), kept))
        return action


class Taken(NamedTuple):
    """A rollout and what happened while it was taken, step by step."""

    columns: dict[str, Tensor]
    log_probs: Tensor
    params: Tensor


def log_probs_of(params: Tensor, actions: Tensor, masks: Tensor | None) -> Tensor:
    """By torch's own distributions."""
    if actions.dtype.is_floating_point:
        mean, log_std = params.chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.exp()).log_prob(actions).sum(-1)
    legal = params if masks is None else params.masked_fill(~masks, -torch.inf)
    return legal.log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)


def take_rollouts(
    agent: str, *, double: bool, masked: bool = False, boxed: bool = False, actor: str = "eager"
) -> tuple[Policy, list[Taken]]:
    factories = [lambda e=ends: ScriptedEnv(e, masked=masked, boxed=boxed) for ends in ENDS]
    envs = make_vec_env(factories, num_groups=1)
    policy = make_policy(
        envs.observation_space, envs.action_space, AgentConfig(name=agent, hidden_size=16), seed=5
    )
    with torch.no_grad():  # far from uniform, so that a wrong input shows
        policy.get_parameter("module.heads.actor.weight").mul_(300.0)
    policy = policy.double() if double else policy
    buffer = RolloutBuffer.for_env(policy, envs, HORIZON, bptt_horizon=SEGMENT)
    collector = RolloutCollector(envs, policy, buffer, seed=11, actor=actor)
    assert collector.actor_kind == actor
    spec = RecordingSpec(policy.action_spec)
    taken = []
    for _ in range(NUM_ROLLOUTS):
        spec.drawn.clear()
        policy.action_spec = spec
        collector.collect()
        policy.action_spec = spec.spec
        columns = {name: column.clone() for name, column in buffer.columns.items()}
        params, actions, masks = zip(*spec.drawn, strict=True)
        assert len(params) == HORIZON
        stacked = None if masks[0] is None else torch.stack(list(masks))
        assert torch.equal(torch.stack(actions).to(columns["actions"].dtype), columns["actions"])
        known = torch.stack(params)
        taken.append(
            Taken(columns, log_probs_of(known, columns["actions"], stacked), known.clone())
        )
    envs.close()
    return policy, taken


def trained_log_probs(policy: Policy, columns: dict[str, Tensor]) -> Tensor:
    """Log-probabilities ``[T, N]`` as the update computes them, minibatch by minibatch."""
    names = ["observations", "actions", "values", "log_probs"]
    names += ["action_masks"] if "action_masks" in columns else []
    names += ["episode_starts"] if policy.is_recurrent else []
    order = torch.randperm(num_items(columns, policy), generator=torch.Generator().manual_seed(0))
    found = torch.full_like(columns["values"], torch.nan)
    rows = found.shape[1]
    for index in order.split(3):
        batch = cut_minibatch(columns, names, index, policy)
        output = policy(batch.obs, batch.state, batch.columns.get("episode_starts"))
        log_probs = policy.action_spec.log_prob(
            output.dist_params, batch.columns["actions"], batch.columns.get("action_masks")
        ).detach()
        for place, item in enumerate(index.tolist()):
            segment, row = divmod(item, rows)
            if policy.is_recurrent:
                found[segment * SEGMENT : (segment + 1) * SEGMENT, row] = log_probs[:, place]
            else:
                found[segment, row] = log_probs[0, place]
    assert found.isfinite().all()
    return found


def largest_gap(policy: Policy, taken: list[Taken]) -> float:
    """Largest distance of a ratio from 1."""
    gaps = [trained_log_probs(policy, one.columns) - one.log_probs for one in taken]
    return max(float(gap.exp().sub(1.0).abs().max()) for gap in gaps)


AGENTS = ["mlp", "lstm", "gru"]


def test_ends_lie_inside_segments_and_at_their_borders_when_rollouts_are_taken() -> None:
    _, taken = take_rollouts("mlp", double=False)
    for kind in ("terminated", "truncated"):
        steps = torch.cat([one.columns[kind].nonzero()[:, 0] for one in taken])
        places = set((steps % SEGMENT).tolist())
        assert {0, SEGMENT - 1} <= places
        assert HORIZON - 1 in steps.tolist()
    starts = torch.stack([one.columns["episode_starts"] for one in taken])
    assert not starts[1:, 0].all()  # some rows carry their state into the next rollout
    assert starts[1:, 0].any()


@pytest.mark.parametrize("kind", ["plain", "masked", "boxed"])
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-9), (False, 1e-4)])
@pytest.mark.parametrize("agent", AGENTS)
def test_ratio_is_one_when_nothing_was_learned_yet(
    agent: str, double: bool, tolerance: float, kind: str
) -> None:
    policy, taken = take_rollouts(
        agent, double=double, masked=kind == "masked", boxed=kind == "boxed"
    )
    assert largest_gap(policy, taken) < tolerance


@pytest.mark.parametrize("kind", ["plain", "masked", "boxed"])
def test_ratio_is_one_when_numpy_acts(kind: str) -> None:
    policy, taken = take_rollouts(
        "mlp", double=False, masked=kind == "masked", boxed=kind == "boxed", actor="numpy"
    )
    assert largest_gap(policy, taken) < 1e-4


@pytest.mark.parametrize("agent", AGENTS)
def test_stored_log_probs_are_those_of_the_draw_when_an_actor_produced_them(agent: str) -> None:
    _, taken = take_rollouts(agent, double=True, masked=True)
    for one in taken:
        torch.testing.assert_close(one.columns["log_probs"], one.log_probs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("agent", ["lstm", "gru"])
def test_memory_spans_an_episode_and_nothing_else_when_acting(agent: str) -> None:
    # each episode alone, from an empty memory, gives the distributions that were drawn from
    policy, taken = take_rollouts(agent, double=True)
    whole = {
        name: torch.cat([one.columns[name] for one in taken])
        for name in ("observations", "episode_starts")
    }
    params = torch.cat([one.params for one in taken])
    for row in range(params.shape[1]):
        starts = whole["episode_starts"][:, row].nonzero().flatten().tolist()
        for first, after in zip(starts, [*starts[1:], len(params)], strict=True):
            obs = whole["observations"][first:after, row, None]
            alone = policy({policy.obs_spec.leaves[0].key: obs}).dist_params[:, 0].detach()
            torch.testing.assert_close(alone, params[first:after, row], rtol=0, atol=1e-9)


@pytest.mark.parametrize("agent", ["lstm", "gru"])
def test_ratio_leaves_one_when_episode_starts_are_ignored(agent: str) -> None:
    policy, taken = take_rollouts(agent, double=True)
    for one in taken:
        one.columns["episode_starts"].fill_(False)
    assert largest_gap(policy, taken) > 1e-2


@pytest.mark.parametrize("agent", ["lstm", "gru"])
def test_ratio_leaves_one_when_the_stored_state_is_zeroed(agent: str) -> None:
    policy, taken = take_rollouts(agent, double=True)
    for one in taken:
        for name, column in one.columns.items():
            if name.startswith(STATE_PREFIX):
                column.zero_()
    assert largest_gap(policy, taken) > 1e-2


def test_ratio_leaves_one_when_action_masks_are_ignored() -> None:
    policy, taken = take_rollouts("mlp", double=True, masked=True)
    for one in taken:
        one.columns["action_masks"].fill_(True)
    assert largest_gap(policy, taken) > 1e-2
