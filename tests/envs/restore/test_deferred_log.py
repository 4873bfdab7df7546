import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.restore.deferred_log import DeferredLog
from metta.envs.restore.episode_log import EpisodeLog


@pytest.mark.parametrize("num_steps", [0, 1, 255, 256, 257, 700])
@pytest.mark.parametrize("space", [spaces.Discrete(9), spaces.Box(-1.0, 1.0, (2,))])
def test_the_log_is_the_same_when_steps_are_entered_late(
    num_steps: int, space: spaces.Space
) -> None:
    deferred, log = DeferredLog(4, 2, space), EpisodeLog(4, space)
    generator = np.random.default_rng(0)
    for kept in (deferred, log):
        kept.begin([5, 6, 7, 8])
    for step in range(num_steps):
        for group in (0, 1):
            actions = np.array([space.sample(), space.sample()])
            starts = generator.random(2) < 0.02
            rows = slice(2 * group, 2 * group + 2)
            deferred.record(group, actions, starts)
            log.record(rows, actions, starts)
            # memory of the caller, which it uses again
            actions[...], starts[...] = 0, False
        if step == 300:
            assert_equal(deferred.log, log)
    assert_equal(deferred.log, log)


def assert_equal(found: EpisodeLog, expected: EpisodeLog) -> None:
    ours, theirs = found.state(), expected.state()
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_steps_before_it_are_gone_when_all_rows_begin() -> None:
    deferred = DeferredLog(2, 1, spaces.Discrete(9))
    deferred.begin([1, 2])
    deferred.record(0, np.array([3, 4]), np.zeros(2, bool))
    deferred.begin([5, 6])
    deferred.record(0, np.array([7, 8]), np.array([False, True]))
    assert deferred.log.seeds.tolist() == [5, 6]
    assert deferred.log.episodes.tolist() == [0, 1]
    assert deferred.log.actions_of(0).tolist() == [7]
    assert deferred.log.actions_of(1).tolist() == []
