from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.restore import episode_log
from metta.envs.restore.episode_log import EpisodeLog
from metta.errors import StateError

DISCRETE = spaces.Discrete(7)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def lived(log: EpisodeLog, num_steps: int, seed: int = 0, groups: int = 2) -> list[list[Any]]:
    """Steps with random actions and ends, in groups; the actions of each row's last episode."""
    generator = np.random.default_rng(seed)
    num_rows = len(log.seeds)
    actions: list[list[Any]] = [[] for _ in range(num_rows)]
    size = num_rows // groups
    buffer = np.zeros(size, np.int64)
    for step in range(num_steps):
        rows = slice(step % groups * size, (step % groups + 1) * size)
        buffer[:] = generator.integers(7, size=size)
        starts = generator.random(size) < 0.05
        log.record(rows, buffer, starts)
        for row, action, start in zip(range(rows.start, rows.stop), buffer, starts, strict=True):
            actions[row] = [] if start else [*actions[row], int(action)]
    return actions


def test_actions_since_the_last_start_are_kept_when_groups_step_in_turn() -> None:
    log = EpisodeLog(4, DISCRETE)
    log.begin([5, 6, 7, 8])
    actions = lived(log, 301)
    assert [log.actions_of(row).tolist() for row in range(4)] == actions
    assert log.unknown_rows() == []
    assert log.seeds.tolist() == [5, 6, 7, 8]
    assert min(log.episodes) > 1


def test_episodes_are_counted_when_they_begin() -> None:
    log = EpisodeLog(2, DISCRETE)
    log.begin([1, 2])
    for starts in ([True, False], [True, False], [False, True]):
        log.record(slice(0, 2), np.zeros(2, np.int64), np.array(starts))
    assert log.episodes.tolist() == [2, 1]
    assert [len(log.actions_of(row)) for row in (0, 1)] == [1, 0]
    log.begin([3, 4])
    assert log.episodes.tolist() == [0, 0]
    assert len(log.actions_of(0)) == 0


def test_the_log_grows_when_episodes_are_long() -> None:
    log = EpisodeLog(2, BOX)
    log.begin([1, 2])
    steps = np.arange(2000, dtype=np.float32).reshape(1000, 2) / 2000
    for step in steps:
        log.record(slice(0, 1), step[None], np.zeros(1, np.bool_))
    np.testing.assert_array_equal(log.actions_of(0), steps)
    assert log.actions_of(1).shape == (0, 2)


def test_memory_is_the_same_when_episodes_are_short() -> None:
    log = EpisodeLog(2, DISCRETE)
    log.begin([1, 2])
    memory = log._actions
    lived(log, 5000)
    assert log._actions is memory
    # nor for rows that are not logged at all
    log.join([1, 2], np.array([0, 0]))
    for _ in range(1000):
        log.record(slice(0, 2), np.zeros(2, np.int64), np.zeros(2, np.bool_))
    assert log._actions is memory


@pytest.mark.parametrize(
    ("most", "ends"), [(1_000_000, 0.05), (1_000_000, 0.0), (600, 0.002), (600, 0.0)]
)
def test_a_block_of_steps_is_logged_as_single_steps_are(
    monkeypatch: pytest.MonkeyPatch, most: int, ends: float
) -> None:
    monkeypatch.setattr(episode_log, "MAX_LOGGED_STEPS", most)
    one, many = EpisodeLog(4, BOX), EpisodeLog(4, BOX)
    generator = np.random.default_rng(0)
    for log in (one, many):
        log.join([1, 2, 3, 4], np.array([0, 3, 0, 1]))  # unknown until they begin anew
    rows = slice(1, 4)
    was_known, was_long = set[int](), False
    for block in range(40):
        if block == 10:
            one.begin([5, 6, 7, 8])
            many.begin([5, 6, 7, 8])
        count = int(generator.integers(1, 50))
        actions = generator.random((count, 3, 2), np.float32)
        starts = generator.random((count, 3)) < ends
        for step in range(count):
            one.record(rows, actions[step], starts[step])
        many.record_block(rows, actions, starts)
        expected, found = one.state(), many.state()
        for name, column in expected.items():
            np.testing.assert_array_equal(found[name], column, err_msg=f"{name} in block {block}")
        was_known.update({1, 2, 3} - set(one.unknown_rows()))
        was_long |= int(one.state()["lengths"].max()) > 256
    assert was_known == {1, 2, 3}
    assert was_long == (ends < 0.05)


def test_a_row_is_unknown_when_its_episode_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_log, "MAX_LOGGED_STEPS", 600)
    log = EpisodeLog(2, DISCRETE)
    log.begin([1, 2])
    action, goes_on = np.array([3]), np.array([False])
    for _ in range(600):
        log.record(slice(0, 1), action, goes_on)
    assert log.unknown_rows() == []
    for _ in range(700):
        log.record(slice(0, 1), action, goes_on)
    assert log.unknown_rows() == [0]
    assert log.state()["lengths"].tolist() == [-1, 0]
    log.record(slice(0, 1), action, np.array([True]))
    log.record(slice(0, 1), action, goes_on)
    assert log.unknown_rows() == []
    assert log.actions_of(0).tolist() == [3]


def test_rows_are_unknown_until_their_next_episodes_when_their_beginning_was_not_seen() -> None:
    log = EpisodeLog(2, DISCRETE)
    assert log.unknown_rows() == [0, 1]
    log.join([1, 2], np.array([4, 5]))
    log.record(slice(0, 2), np.array([1, 1]), np.array([False, True]))
    log.record(slice(0, 2), np.array([2, 3]), np.array([False, False]))
    assert log.unknown_rows() == [0]
    assert log.episodes.tolist() == [4, 6]
    assert log.actions_of(1).tolist() == [3]


def test_a_log_goes_on_when_another_one_takes_its_state() -> None:
    log, other = EpisodeLog(4, DISCRETE), EpisodeLog(4, DISCRETE)
    log.begin([5, 6, 7, 8])
    lived(log, 300)
    lived(other, 50, seed=4)
    other.load(log.state())
    for one in (log, other):
        lived(one, 40, seed=9)
    for name, value in log.state().items():
        np.testing.assert_array_equal(value, other.state()[name])
        assert value.dtype == other.state()[name].dtype


def test_a_state_stands_alone_when_the_log_goes_on() -> None:
    log = EpisodeLog(2, DISCRETE)
    log.begin([1, 2])
    log.record(slice(0, 2), np.array([1, 2]), np.zeros(2, np.bool_))
    state = log.state()
    log.begin([3, 4])
    log.record(slice(0, 2), np.array([5, 6]), np.zeros(2, np.bool_))
    assert state["actions"].tolist() == [1, 2]
    assert state["seeds"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"actions": np.zeros(4, np.int64)},
        {"actions": np.zeros(3, np.int32)},
        {"actions": None},
        {"lengths": np.array([1, 1], np.int64)},
        {"lengths": np.array([3], np.int64)},
        {"seeds": np.array([1.0, 2.0])},
        {"episodes": np.array([-1, 0], np.int64)},
        {"lengths": None},
    ],
)
def test_a_state_is_refused_when_it_is_not_of_these_rows(change: dict[str, Any]) -> None:
    log = EpisodeLog(2, DISCRETE)
    log.begin([1, 2])
    log.record(slice(0, 2), np.array([1, 2]), np.zeros(2, np.bool_))
    log.record(slice(0, 1), np.array([1]), np.zeros(1, np.bool_))
    with pytest.raises(StateError, match="the saved"):
        EpisodeLog(2, DISCRETE).load(log.state() | change)
