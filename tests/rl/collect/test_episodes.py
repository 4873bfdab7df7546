"""Returns and lengths of episodes, with answers worked out by hand."""

import numpy as np
import pytest
from gymnasium import spaces

from metta.agent.factory import make_policy
from metta.envs.vec_env import LIFE_LOST
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.episodes import EpisodeMeter, cut_episodes

Rows = list[list[float]]


def buffer_of(rewards: Rows, terminated: Rows, truncated: Rows, valid: Rows) -> RolloutBuffer:
    """A buffer of given numbers; each argument is a list of rows of N."""
    policy = make_policy(spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2))
    buffer = RolloutBuffer(policy, len(rewards[0]), len(rewards))
    for name, numbers in (
        ("rewards", rewards),
        ("terminated", terminated),
        ("truncated", truncated),
        ("valid", valid),
    ):
        getattr(buffer, name).numpy()[...] = numbers
    return buffer


def test_episodes_are_summed_over_rollouts_when_they_span_them() -> None:
    meter = EpisodeMeter(2)
    ones, nothing = [[1, 1]] * 2, [[0, 0]] * 2
    # row 0 earns 1 2 | 3 4 | 5. 6 and row 1 earns 10 20. | 30 40 | 50 60. (a dot ends an episode)
    first = buffer_of([[1, 10], [2, 20]], [[0, 0], [0, 1]], nothing, ones)
    second = buffer_of([[3, 30], [4, 40]], nothing, nothing, ones)
    third = buffer_of([[5, 50], [6, 60]], [[1, 0], [0, 0]], [[0, 0], [0, 1]], ones)
    assert meter.update(first, []) == {"episode_return": [30.0], "episode_length": [2.0]}
    assert meter.update(second, []) == {"episode_return": [], "episode_length": []}
    assert meter.update(third, []) == {
        "episode_return": [1 + 2 + 3 + 4 + 5, 30 + 40 + 50 + 60],
        "episode_length": [5.0, 4.0],
    }
    assert meter.returns.tolist() == [6.0, 0.0]
    assert meter.lengths.tolist() == [1, 0]
    assert meter.num_episodes == 3


def test_invalid_steps_do_not_count_when_they_hold_rewards_and_ends() -> None:
    meter = EpisodeMeter(1)
    buffer = buffer_of(
        rewards=[[1], [100], [2], [100], [4]],
        terminated=[[0], [1], [1], [0], [0]],
        truncated=[[0], [0], [0], [1], [0]],
        valid=[[1], [0], [1], [0], [1]],
    )
    assert meter.update(buffer, []) == {"episode_return": [3.0], "episode_length": [2.0]}
    assert meter.returns.tolist() == [4.0]
    assert meter.lengths.tolist() == [1]


def test_an_episode_goes_on_when_a_life_is_lost() -> None:
    meter, life = EpisodeMeter(2), {LIFE_LOST: 1.0}
    nothing, ones = [[0, 0]] * 3, [[1, 1]] * 3
    # row 0 loses a life in its second step and ends in its third; row 1 loses its process with the third
    buffer = buffer_of([[1, 10], [2, 20], [4, 40]], [[0, 0], [1, 1], [1, 0]], nothing, ones)
    buffer.lost.append((1, 1))
    assert meter.update(buffer, [(1, 0, life), (1, 1, life)]) == {
        "episode_return": [7.0],
        "episode_length": [3.0],
    }
    assert meter.returns.tolist() == [0.0, 40.0]
    assert meter.lengths.tolist() == [0, 1]


def test_every_step_is_an_episode_when_all_have_one_step() -> None:
    ones, nothing = [[1, 1]] * 3, [[0, 0]] * 3
    buffer = buffer_of([[1, 2], [3, 4], [5, 6]], ones, nothing, ones)
    stats = EpisodeMeter(2).update(buffer, [])
    assert stats == {"episode_return": [1, 2, 3, 4, 5, 6], "episode_length": [1.0] * 6}


def test_an_episode_counts_once_when_it_ends_both_ways() -> None:
    buffer = buffer_of([[1], [2]], [[0], [1]], [[0], [1]], [[1], [1]])
    assert EpisodeMeter(1).update(buffer, [])["episode_return"] == [3.0]


def test_infos_become_lists_when_environments_report_numbers() -> None:
    buffer = buffer_of([[1], [2]], [[1], [1]], [[0], [0]], [[1], [1]])
    infos = [(0, 0, {"score": 4.0, "wins": 1.0}), (1, 0, {"score": 5.0})]
    stats = EpisodeMeter(1).update(buffer, infos)
    assert stats["env/score"] == [4.0, 5.0]
    assert stats["env/wins"] == [1.0]


def test_a_loaded_meter_goes_on_when_an_episode_was_unfinished() -> None:
    ones = [[1], [1]]
    meter, other = EpisodeMeter(1), EpisodeMeter(1)
    meter.update(buffer_of([[1], [2]], [[0], [0]], [[0], [0]], ones), [])
    other.load_state_dict(meter.state_dict())
    last = buffer_of([[3], [4]], [[0], [1]], [[0], [0]], ones)
    assert other.update(last, []) == {"episode_return": [10.0], "episode_length": [4.0]}
    assert meter.lengths.tolist() == [2]  # the two share no memory


def test_long_sums_stay_exact_when_rewards_are_float32() -> None:
    rewards = np.full((4096, 1), 0.1, np.float32)
    ended = np.zeros((4096, 1), bool)
    ended[-1] = True
    parts = cut_episodes(rewards, np.ones_like(ended), ended)
    assert parts.returns[0] == pytest.approx(4096 * float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_episodes_are_those_of_a_plain_loop_when_many_end(share: float) -> None:
    generator = np.random.Generator(np.random.PCG64(4))
    shape = (40, 7)
    rewards, valid = generator.standard_normal(shape), generator.random(shape) < 0.9
    ended = (generator.random(shape) < share) & valid
    wanted = []
    total, length, count = np.zeros(7), np.zeros(7, int), np.zeros(7, int)
    for step in range(40):
        for row in range(7):
            total[row] += rewards[step, row] * valid[step, row]
            length[row] += valid[step, row]
            if ended[step, row]:
                wanted.append((step, row, total[row], length[row], count[row] == 0))
                total[row], length[row], count[row] = 0.0, 0, count[row] + 1
    parts = cut_episodes(rewards, valid, ended)
    found = list(
        zip(parts.steps, parts.rows, parts.returns, parts.lengths, parts.is_first, strict=True)
    )
    assert [(s, r, n, f) for s, r, _, n, f in found] == [(s, r, n, f) for s, r, _, n, f in wanted]
    assert [row[2] for row in found] == pytest.approx([row[2] for row in wanted], abs=1e-9)
    assert parts.tail_returns == pytest.approx(total, abs=1e-9)
    assert parts.tail_lengths.tolist() == length.tolist()
