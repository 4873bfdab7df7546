from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.restore import episode_log
from metta.envs.restore.episode_log import EpisodeLog
from metta.errors import StateError

DISCRETE = spaces.Discrete(7)
BOX = spaces.Box(-1, 1, (2,), np.float32)
GOES_ON = np.array([False])


def lived(log: EpisodeLog, num_steps: int, seed: int = 0) -> tuple[list[list[Any]], list[int]]:
    """Steps of four rows in two groups; the actions and the number of each row's last episode."""
    generator = np.random.default_rng(seed)
    actions: list[list[Any]] = [[] for _ in range(4)]
    episodes = [0] * 4
    buffer, starts = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    for step in range(num_steps):
        group = step % 2
        # memory of the caller, which it uses again
        buffer[:], starts[:] = generator.integers(7, size=2), generator.random(2) < 0.02
        log.record(group, buffer, starts)
        for row, action, start in zip((2 * group, 2 * group + 1), buffer, starts, strict=True):
            actions[row] = [] if start else [*actions[row], int(action)]
            episodes[row] += int(start)
        if step == 300:
            log.unknown_rows()  # reading it in between changes nothing
    return actions, episodes


@pytest.mark.parametrize("num_steps", [0, 1, 511, 512, 513, 1400])
def test_actions_since_the_last_start_are_kept_when_groups_step_in_turn(num_steps: int) -> None:
    log = EpisodeLog(4, 2, DISCRETE)
    log.begin([5, 6, 7, 8])
    actions, episodes = lived(log, num_steps)
    places = [log.place_of(row, task=row) for row in range(4)]
    assert [place.actions.tolist() for place in places] == actions
    assert [place.episode for place in places] == episodes
    assert [(place.seed, place.task, place.state) for place in places] == [
        (5, 0, None), (6, 1, None), (7, 2, None), (8, 3, None),
    ]  # fmt: skip
    assert log.unknown_rows(from_start=True) == []
    log.begin([1, 2, 3, 4])
    assert [(log.place_of(row).episode, len(log.place_of(row).actions)) for row in range(4)] == [
        (0, 0)
    ] * 4


def test_arrays_of_numbers_are_kept_when_episodes_are_long() -> None:
    log = EpisodeLog(2, 2, BOX)
    log.begin([1, 2])
    steps = np.arange(2000, dtype=np.float32).reshape(1000, 2) / 2000
    for step in steps:
        log.record(0, step[None], GOES_ON)
    np.testing.assert_array_equal(log.place_of(0).actions, steps)
    assert log.place_of(1).actions.shape == (0, 2)
    assert log.place_of(1).actions.dtype == np.float32


def test_a_row_is_unknown_when_its_episode_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_log, "MAX_LOGGED_STEPS", 600)
    log = EpisodeLog(2, 2, DISCRETE)
    log.begin([1, 2])
    action = np.array([3])
    for _ in range(600):
        log.record(0, action, GOES_ON)
    assert log.unknown_rows() == []
    for _ in range(700):
        log.record(0, action, GOES_ON)
    assert log.unknown_rows() == [0]
    log.record(0, action, np.array([True]))
    log.record(0, action, GOES_ON)
    assert log.unknown_rows() == []
    assert log.place_of(0).actions.tolist() == [3]


def test_rows_are_unknown_until_their_next_episodes_when_the_log_forgot_them() -> None:
    log = EpisodeLog(2, 1, DISCRETE)
    assert log.unknown_rows() == [0, 1]
    log.begin([1, 2])
    log.record(0, np.array([4, 4]), np.array([True, False]))
    log.unknown_rows()
    log.forget()
    log.record(0, np.array([1, 1]), np.array([False, True]))
    log.record(0, np.array([2, 3]), np.array([False, False]))
    assert log.unknown_rows() == [0]
    assert log.place_of(1).actions.tolist() == [3]
    assert (log.place_of(1).seed, log.place_of(1).episode) == (2, 1)


def test_rows_are_known_from_a_state_on_until_their_next_episodes_when_one_was_loaded() -> None:
    log = EpisodeLog(2, 1, DISCRETE)
    log.begin_at([{"seed": 7, "episode": 4, "env": {"at": row}} for row in (0, 1)])
    log.record(0, np.array([5, 6]), np.array([False, True]))
    first, second = log.place_of(0), log.place_of(1)
    assert (first.seed, first.episode, first.state, first.actions.tolist()) == (
        7,
        4,
        {"at": 0},
        [5],
    )
    assert (second.episode, second.state, second.actions.tolist()) == (5, None, [])
    assert (log.unknown_rows(), log.unknown_rows(from_start=True)) == ([], [0])
    with pytest.raises(StateError, match="no seed, episode and env"):
        log.begin_at([{"seed": 7, "episode": 4}] * 2)


def test_a_log_continues_when_another_one_takes_its_state() -> None:
    log, other = EpisodeLog(4, 2, DISCRETE), EpisodeLog(4, 2, DISCRETE)
    log.begin([5, 6, 7, 8])
    lived(log, 600)
    lived(other, 50, seed=4)
    state = log.state()
    kept = {name: value.copy() for name, value in state.items()}
    other.load(state)
    for one in (log, other):
        lived(one, 40, seed=9)
    for name, value in log.state().items():
        np.testing.assert_array_equal(value, other.state()[name])
        assert value.dtype == other.state()[name].dtype
        np.testing.assert_array_equal(state[name], kept[name])


@pytest.mark.parametrize(
    "change",
    [
        {"actions": np.zeros(4, np.int64)},
        {"actions": np.zeros(3, np.int32)},
        {"lengths": np.array([1, 1], np.int64)},
        {"lengths": np.array([-1, 4], np.int64)},
        {"lengths": None},
        {"seeds": np.array([1.0, 2.0])},
        {"episodes": np.array([-1, 0], np.int64)},
    ],
)
def test_a_state_is_refused_when_it_is_not_of_these_rows(change: dict[str, Any]) -> None:
    log = EpisodeLog(2, 2, DISCRETE)
    log.begin([1, 2])
    for group in (0, 1, 0):
        log.record(group, np.array([1]), GOES_ON)
    with pytest.raises(StateError, match="the saved"):
        EpisodeLog(2, 2, DISCRETE).load(log.state() | change)
