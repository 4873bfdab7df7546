import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.row_spec import episode_seed
from metta.envs.toy import (
    ContinuousTargetEnv,
    CorridorEnv,
    CountdownEnv,
    MaskedCorridorEnv,
    MemoryEnv,
    NestedEnv,
)
from metta.errors import ConfigError, EnvError
from metta.sim.simulation import EpisodeScores, run_episodes
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig


class LotteryEnv(gymnasium.Env):
    """Episodes have 1 or 9 steps, with equal chances, and every step earns 1."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.left = int(self.np_random.choice([1, 9]))
        return np.array([self.left], np.float32), {}

    def step(self, action: int) -> Any:
        assert action in (0, 1)
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


def play(env: Any, num_episodes: int, *, rows: int = 4, seed: int = 5, **options: Any) -> Any:
    made = options.pop("policy", None) or policy_for(env)
    num_groups = options.pop("num_groups", 1)
    vec_env = make_vec_env(env, num_envs=rows, num_groups=num_groups)
    try:
        return run_episodes(made, vec_env, num_episodes, seed=seed, **options)
    finally:
        vec_env.close()


def policy_for(env: Any, **config: Any) -> Policy:
    made = env()
    agent = AgentConfig(hidden_size=8, **config)
    return make_policy(made.observation_space, made.action_space, agent, seed=1)


def earliest_started(num_rows: int, num_episodes: int, seed: int) -> list[int]:
    """Lengths of the first episodes by (time, row) of their start, read off the lottery itself."""
    starts = []
    for row, row_seed in enumerate(row_seeds(seed, num_rows)):
        env, time = LotteryEnv(), 0
        for episode in range(num_episodes):
            env.reset(seed=episode_seed(row_seed, episode))
            starts.append((time, row, env.left))
            time += env.left
    return [length for _, _, length in sorted(starts)[:num_episodes]]


@pytest.mark.parametrize(("rows", "num_episodes"), [(4, 3), (4, 4), (4, 25), (7, 8), (1, 5)])
def test_the_earliest_started_episodes_count_when_lengths_differ(
    rows: int, num_episodes: int
) -> None:
    scores = play(LotteryEnv, num_episodes, rows=rows)
    expected = earliest_started(rows, num_episodes, seed=5)
    assert scores.lengths.tolist() == expected
    assert scores.returns.tolist() == expected


def test_the_mean_is_unbiased_when_short_episodes_score_less() -> None:
    scores = play(LotteryEnv, 200, rows=200)
    # (1 + 9) / 2; the deviation of a mean of 200 is 0.28. First to finish would give about 1
    assert scores.mean == pytest.approx(5.0, abs=1.0)


def test_scores_are_the_known_ones_when_nothing_is_to_decide() -> None:
    scores = play(CountdownEnv, 6)
    assert scores.returns.tolist() == [15.0] * 6
    assert scores.lengths.tolist() == [5] * 6


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_resets_do_not_count_as_steps_when_a_vector_environment_resets_itself(
    mode: AutoresetMode,
) -> None:
    envs = SyncVectorEnv([CountdownEnv] * 3, autoreset_mode=mode)
    vec_env = make_vec_env(envs)
    scores = run_episodes(policy_for(CountdownEnv), vec_env, 7, seed=1)
    vec_env.close()
    assert scores.returns.tolist() == [15.0] * 7
    assert scores.lengths.tolist() == [5] * 7


def test_cut_episodes_count_when_they_are_truncated() -> None:
    scores = play(lambda: CountdownEnv(3, truncate=True), 4)
    assert scores.returns.tolist() == [6.0] * 4


def test_results_are_equal_when_seeds_are() -> None:
    first, second, third = (play(CorridorEnv, 9, seed=seed) for seed in (1, 1, 2))
    assert first.returns.tolist() == second.returns.tolist()
    assert first.lengths.tolist() != third.lengths.tolist()


def test_results_are_equal_when_rows_step_in_groups() -> None:
    policy = policy_for(MaskedCorridorEnv)
    first = play(MaskedCorridorEnv, 9, policy=policy)
    second = play(MaskedCorridorEnv, 9, policy=policy, num_groups=2)
    assert first.lengths.tolist() == second.lengths.tolist()


class WalksRight(nn.Module):
    """Prefers action 1, but not much."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor([0.0, 1.0]).expand(len(obs), 2), torch.zeros(len(obs))


def test_the_likeliest_action_is_taken_when_greedy_is_asked_for() -> None:
    env = CorridorEnv()
    policy = Policy(WalksRight(), env.observation_space, env.action_space)
    greedy = play(CorridorEnv, 6, policy=policy, greedy=True)
    assert greedy.lengths.tolist() == [7] * 6
    assert greedy.returns == pytest.approx(np.full(6, env.optimal_return))
    sampled = play(CorridorEnv, 6, policy=policy)
    assert sampled.mean < greedy.mean


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("mask_in", ["info", "observation"])
def test_no_illegal_action_is_taken_when_the_environment_masks(mask_in: Any, greedy: bool) -> None:
    """The environment raises where an action is illegal."""
    scores = play(lambda: MaskedCorridorEnv(mask_in=mask_in), 8, greedy=greedy)
    assert (scores.lengths > 0).all()


class Remembers(nn.Module):
    """Names the cue of the first observation of its episode."""

    def initial_state(self, num_rows: int) -> dict[str, Tensor]:
        return {"cue": torch.zeros(num_rows, 2)}

    def forward(self, obs: Tensor, state: dict[str, Tensor], starts: Tensor) -> dict[str, Any]:
        cue, cues = state["cue"], []
        for step in range(len(obs)):
            cue = torch.where(starts[step][:, None], obs[step], cue)
            cues.append(cue)
        logits = torch.stack(cues)
        return {"action_logits": 50.0 * logits, "value": logits[..., 0], "state": {"cue": cue}}


@pytest.mark.parametrize("num_groups", [1, 2])
def test_memory_lasts_an_episode_when_the_policy_is_recurrent(num_groups: int) -> None:
    env = MemoryEnv(num_cues=2)
    policy = Policy(Remembers(), env.observation_space, env.action_space)
    scores = play(MemoryEnv, 40, policy=policy, num_groups=num_groups)
    assert scores.mean == 1.0
    forgetful = play(MemoryEnv, 40)
    assert forgetful.mean < 0.9


@pytest.mark.parametrize("env", [ContinuousTargetEnv, NestedEnv])
def test_scores_are_finite_when_spaces_are_of_other_kinds(env: Any) -> None:
    assert np.isfinite(play(env, 5).returns).all()


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_part_returns_when_episodes_are_over(training: bool) -> None:
    policy = policy_for(CorridorEnv)
    policy.train(training)
    frozen = next(module for module in policy.modules() if isinstance(module, nn.Linear))
    frozen.train(not training)
    seen: list[bool] = []
    frozen.register_forward_hook(lambda module, *_: seen.append(module.training))
    play(CorridorEnv, 2, policy=policy)
    assert not any(seen)
    assert policy.training is training
    assert frozen.training is not training


def test_the_mode_returns_when_an_environment_fails() -> None:
    class Failing(CorridorEnv):
        def _advance(self, action: int) -> Any:
            raise RuntimeError(f"cannot take {action}")

    policy = policy_for(CorridorEnv).train()
    with pytest.raises(EnvError, match="cannot take"):
        play(Failing, 2, policy=policy)
    assert policy.training


def test_nothing_about_the_policy_changes_when_it_is_scored() -> None:
    policy = policy_for(CorridorEnv, normalize_observations=True)
    before = policy.parameter_hash()
    play(CorridorEnv, 5, policy=policy)
    assert policy.parameter_hash() == before


def test_global_generators_are_untouched_when_episodes_are_played() -> None:
    def states() -> str:
        legacy = np.random.get_state()  # noqa: NPY002 (the legacy generator is what must not move)
        return digest_of([torch.get_rng_state(), legacy[1], legacy[2], repr(random.getstate())])

    policy = policy_for(ContinuousTargetEnv)
    before = states()
    play(ContinuousTargetEnv, 5, policy=policy)
    assert states() == before


def test_an_env_error_says_what_to_do_when_episodes_do_not_end() -> None:
    with pytest.raises(EnvError, match=r"3 of 3 episodes had not ended after 50 steps; give the"):
        play(lambda: CountdownEnv(10**6), 3, max_steps=50)


@pytest.mark.parametrize("num_episodes", [0, -1])
def test_a_config_error_is_raised_when_no_episode_is_asked_for(num_episodes: int) -> None:
    with pytest.raises(ConfigError, match="it must be at least 1"):
        play(CountdownEnv, num_episodes)


def test_the_mean_is_that_of_returns_when_scores_are_read() -> None:
    assert EpisodeScores(np.array([1.0, 2.0, 6.0]), np.array([1, 1, 1])).mean == 3.0
