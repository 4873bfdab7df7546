from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from metta.envs import toy
from metta.envs.toy import (
    BufferReuseEnv,
    ContinuousTargetEnv,
    CorridorEnv,
    CountdownEnv,
    MaskedCorridorEnv,
    MemoryEnv,
    MultiDiscreteEnv,
    NestedEnv,
)


def play(env: Any, policy: Any, seed: int = 0) -> tuple[float, int]:
    """Return and length of one episode; the policy maps (observation, info) to an action."""
    observation, info = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(policy(observation, info))
        total, length, over = total + reward, length + 1, terminated or truncated
    return total, length


# one breaks a rule of gymnasium on purpose, the other has actions that the checker must not take
UNCHECKED = {"BufferReuseEnv", "MaskedCorridorEnv"}


@pytest.mark.parametrize("name", sorted(set(toy.__all__) - UNCHECKED))
def test_gymnasiums_checker_is_content_when_it_tries_a_toy(name: str) -> None:
    check_env(getattr(toy, name)(), skip_render_check=True)


@pytest.mark.parametrize("name", toy.__all__)
def test_episodes_repeat_when_the_seed_is_the_same(name: str) -> None:
    env = getattr(toy, name)()
    env.action_space.seed(0)
    action = 1 if name == "MaskedCorridorEnv" else env.action_space.sample()
    stories = []
    for _ in range(2):
        story = [repr(env.reset(seed=3))]
        story += [repr(env.step(action)) for _ in range(3)]
        stories.append(story)
    assert stories[0] == stories[1]


def test_the_optimal_return_is_reached_when_walking_straight() -> None:
    # seven steps: six cost 0.1, the last earns 1
    env = CorridorEnv(length=8)
    total, length = play(env, lambda *_: 1)
    assert length == 7
    assert total == pytest.approx(0.4)
    assert env.optimal_return == pytest.approx(0.4)


def test_the_corridor_cuts_episodes_when_nobody_walks() -> None:
    assert play(CorridorEnv(max_steps=5), lambda *_: 0)[1] == 5


def test_the_optimal_return_is_reached_when_jumping_wherever_legal() -> None:
    # cells 0 2 4 6 8: four jumps, three of them cost 0.1
    env = MaskedCorridorEnv(length=9)
    total, length = play(env, lambda _, info: int(np.flatnonzero(info["action_mask"])[-1]))
    assert length == 4
    assert total == pytest.approx(0.7)
    assert env.optimal_return == pytest.approx(0.7)


def test_legal_actions_change_when_the_state_changes() -> None:
    env = MaskedCorridorEnv(length=4)
    masks = [env.reset(seed=0)[1]["action_mask"].tolist()]
    masks += [env.step(1)[4]["action_mask"].tolist() for _ in range(3)]
    assert masks == [[0, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_an_illegal_action_raises_when_taken() -> None:
    env = MaskedCorridorEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="illegal"):
        env.step(0)


def test_the_mask_is_in_the_observation_when_asked_for() -> None:
    observation, info = MaskedCorridorEnv(mask_in="observation").reset(seed=0)
    assert observation["action_mask"].tolist() == [0, 1, 1]
    assert info == {}


def test_memory_pays_when_the_cue_is_remembered() -> None:
    env = MemoryEnv(delay=3, num_cues=4)
    for seed in range(20):
        cue = int(env.reset(seed=seed)[0].argmax())
        observations, rewards = [], []
        for _ in range(4):
            observation, reward, terminated, _, _ = env.step(cue)
            observations.append(observation)
            rewards.append(reward)
        assert terminated
        assert rewards == [0.0, 0.0, 0.0, env.optimal_return]
        assert not np.any(observations)


def test_memoryless_play_gets_chance_when_the_cue_is_gone() -> None:
    env = MemoryEnv(delay=1, num_cues=2)
    mean = np.mean([play(env, lambda *_: 0, seed)[0] for seed in range(400)])
    # 400 coin flips have a standard deviation of 0.025
    assert abs(mean - env.memoryless_return) < 0.1


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("length", [1, 4])
def test_returns_are_triangular_numbers_when_counting(length: int, truncate: bool) -> None:
    env = CountdownEnv(length, truncate=truncate)
    assert play(env, lambda *_: 0) == (env.optimal_return, length)
    env.reset(seed=0)
    *_, terminated, truncated, info = [env.step(0) for _ in range(length)][-1]
    assert (terminated, truncated) == (not truncate, truncate)
    assert info == {"length": length}


def test_the_same_array_is_returned_when_buffers_are_reused() -> None:
    env = BufferReuseEnv()
    first, _ = env.reset(seed=0)
    assert env.step(0)[0] is first
    assert env.reset()[0] is first


def test_rewards_are_squared_distances_when_naming_points() -> None:
    env = ContinuousTargetEnv(size=2)
    target, _ = env.reset(seed=0)
    # (0.5^2 + 0.5^2) = 0.5
    assert env.step(target + 0.5)[1] == pytest.approx(-0.5, abs=1e-6)
    assert play(env, lambda observation, _: observation)[0] == env.optimal_return


def test_rewards_count_matching_parts_when_repeating_numbers() -> None:
    env = MultiDiscreteEnv((3, 2, 4), length=5)
    numbers, _ = env.reset(seed=0)
    wrong = numbers.copy()
    wrong[0] = (wrong[0] + 1) % 3
    assert env.step(wrong)[1] == pytest.approx(2 / 3)
    assert play(env, lambda observation, _: observation) == (env.optimal_return, 5)


def test_both_kinds_of_end_occur_when_nested_episodes_run() -> None:
    env = NestedEnv()
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(300)]
    assert {(False, False), (True, False), (False, True)} == set(ends)
