import functools
import itertools
import os
import random
import warnings
from pathlib import Path
from types import SimpleNamespace
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
from metta.envs.rows.row_spec import episode_seed
from metta.envs.toy import (
    ContinuousTargetEnv,
    CorridorEnv,
    CountdownEnv,
    MaskedCorridorEnv,
    MemoryEnv,
    NestedEnv,
)
from metta.errors import ConfigError, EnvError, MettaWarning
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


def earliest_ended(num_rows: int, num_episodes: int, seed: int) -> list[int]:
    """What counting by end would take: lengths of the first episodes by the time of their end."""
    ends = []
    for row, row_seed in enumerate(row_seeds(seed, num_rows)):
        env, time = LotteryEnv(), 0
        for episode in range(num_episodes):
            env.reset(seed=episode_seed(row_seed, episode))
            time += env.left
            ends.append((time, row, env.left))
    return [length for _, _, length in sorted(ends)[:num_episodes]]


def test_the_mean_over_seeds_is_the_known_one_when_rows_play_several_episodes() -> None:
    """Whether an episode counts does not depend on its own length, so the expectation is (1 + 9) / 2."""
    by_start = np.mean([play(LotteryEnv, 24, rows=16, seed=seed).mean for seed in range(40)])
    by_end = np.mean([np.mean(earliest_ended(16, 24, seed)) for seed in range(40)])
    assert by_start == pytest.approx(5.0, abs=0.5)  # about four deviations of a mean of 960
    assert by_end < 4.0


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
    with pytest.raises(
        EnvError, match=r"3 of 3 episodes had not ended after 50 steps; cut them .*TimeLimit"
    ):
        play(lambda: CountdownEnv(10**6), 3, max_steps=50)


def test_one_line_is_said_when_an_episode_is_very_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metta.sim.simulation._LONG_EPISODE", 20)
    with pytest.warns(MettaWarning, match=r"not ended after 20 steps.*TimeLimit\(1000\)") as said:
        play(lambda: CountdownEnv(100), 2)
    assert len(said) == 1
    play(lambda: CountdownEnv(9), 8)  # many short ones take as many steps


class Lengths(CountdownEnv):
    """Episodes of these lengths, one after the other."""

    def __init__(self, *lengths: int) -> None:
        super().__init__()
        self.lengths = list(lengths)
        self.length = self.lengths.pop(0)

    def _advance(self, action: int) -> Any:
        reply = super()._advance(action)
        if self.steps == self.length and self.lengths:
            self.length = self.lengths.pop(0)
        return reply


@pytest.mark.parametrize(
    ("lengths", "count"), [((7, 19), 0), ((1, 21), 0), ((1, 22), 1), ((7, 19, 45, 200), 1)]
)
def test_one_line_is_said_when_a_later_episode_is_very_long(
    lengths: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metta.sim.simulation._LONG_EPISODE", 20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        play(functools.partial(Lengths, *lengths), len(lengths), rows=1)
    assert ["not ended after 20 steps" in str(one.message) for one in said] == [True] * count


@pytest.mark.parametrize("num_episodes", [0, -1])
def test_a_config_error_is_raised_when_no_episode_is_asked_for(num_episodes: int) -> None:
    with pytest.raises(ConfigError, match="it must be at least 1"):
        play(CountdownEnv, num_episodes)


def test_the_mean_is_that_of_returns_when_scores_are_read() -> None:
    assert EpisodeScores(np.array([1.0, 2.0, 6.0]), np.array([1, 1, 1])).mean == 3.0


def test_only_finished_episodes_count_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One environment never ends, so that its episode is missing, and only that."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # a second each step
    monkeypatch.setattr("metta.sim.simulation.time", clock)
    factories = [CountdownEnv, lambda: CountdownEnv(10**9)]
    vec_env = make_vec_env(factories)
    try:
        scores = run_episodes(policy_for(CountdownEnv), vec_env, 7, seed=1, max_seconds=50)
    finally:
        vec_env.close()
    assert scores.returns.tolist() == [15.0] * 6
    assert scores.lengths.tolist() == [5] * 6
    assert scores.num_missing == 1


def test_there_is_no_score_when_no_episode_ended_in_time() -> None:
    scores = play(lambda: CountdownEnv(10**9), 3, max_seconds=1e-9)
    assert (len(scores.returns), scores.num_missing) == (0, 3)
    assert np.isnan(scores.mean)


def test_nothing_is_missing_when_the_time_suffices() -> None:
    assert play(CountdownEnv, 3, max_seconds=60.0).num_missing == 0


def test_the_environments_numbers_are_kept_when_an_episode_ends() -> None:
    scores = play(CorridorEnv, 5)
    assert scores.agents is not None
    ended = [numbers["position"] for (numbers,) in scores.agents.infos]
    arrived = [7.0 if length < 64 else None for length in scores.lengths]
    assert [n if n == 7.0 else None for n in ended] == arrived


def test_an_observer_sees_every_step_when_there_is_one() -> None:
    class Watching:
        def __init__(self) -> None:
            self.positions: dict[int, list[int]] = {}
            self.moves: dict[int, list[int]] = {}
            self.rewards = 0.0

        def __call__(self, rows: slice, obs: Any, actions: np.ndarray, result: Any) -> None:
            for place, row in enumerate(range(rows.start, rows.stop)):
                self.positions.setdefault(row, []).append(int(obs["obs"][place].argmax()))
                self.moves.setdefault(row, []).append(int(actions[place]))
            self.rewards += float(result.rewards.sum())

    policy, watching = policy_for(CorridorEnv), Watching()
    seen = play(CorridorEnv, 4, policy=policy, num_groups=2, observer=watching)
    unseen = play(CorridorEnv, 4, policy=policy, num_groups=2)
    assert seen.returns.tolist() == unseen.returns.tolist()
    assert sorted(watching.positions) == [0, 1, 2, 3]
    assert watching.rewards <= seen.returns.sum() + 1e-3  # later episodes cost only
    for row, positions in watching.positions.items():
        first = int(seen.lengths[row])
        for step in range(first - 1):
            move = 1 if watching.moves[row][step] else -1
            assert positions[step + 1] == max(0, positions[step] + move)


class DiesOnce(LotteryEnv):
    """Five steps that earn 1 each. Its process ends once, in the third step; no episode can be repeated."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.left = 5
        return self._noise(), {}

    def step(self, action: int) -> Any:
        if self.left == 3 and not self.mark.exists():
            self.mark.touch()
            os._exit(3)
        return self._noise(), *super().step(action)[1:]

    def _noise(self) -> np.ndarray:
        return np.array([int.from_bytes(os.urandom(3), "little") / 2**21], np.float32)


def test_an_episode_that_broke_off_counts_nowhere_when_its_worker_died(tmp_path: Path) -> None:
    mark, lost = tmp_path / "died", []
    vec_env = make_vec_env(lambda: DiesOnce(mark), num_envs=2, num_workers=2)
    try:
        with pytest.warns(MettaWarning, match="are lost and not counted"):
            scores = run_episodes(
                policy_for(LotteryEnv),
                vec_env,
                5,
                seed=1,
                observer=lambda *seen: lost.append(seen[3].lost is not None),
            )
    finally:
        vec_env.close()
    assert any(lost)
    assert scores.returns.tolist() == [5.0] * 5
    assert scores.lengths.tolist() == [5] * 5


class DrawsGlobally(LotteryEnv):
    """Uses the generators that everybody shares."""

    def step(self, action: int) -> Any:
        random.random()
        np.random.rand(3)  # noqa: NPY002 (bad manners are the point)
        torch.rand(2)
        return super().step(action)


def test_global_generators_return_when_an_environment_draws_from_them() -> None:
    def draws() -> list[Any]:
        return [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002 (meant)

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (meant)
    torch.manual_seed(1)
    expected = draws()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (meant)
    torch.manual_seed(1)
    play(DrawsGlobally, 4)
    assert draws() == expected
