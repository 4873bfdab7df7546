from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.restore.env_values import UnreadableStateError
from metta.envs.restore.episode_log import EpisodeLog
from metta.envs.restore.saved_envs import (
    boundary_state,
    class_of_state,
    repeat_state,
    snapshot_rows,
    snapshot_state,
)
from metta.errors import MettaWarning, StateError


def _unreadable() -> dict[str, Any]:
    raise UnreadableStateError("attribute 'screen' is a Surface, whose state cannot be read")


def test_fresh_episodes_are_announced_when_a_state_cannot_be_read_any_more() -> None:
    with pytest.warns(MettaWarning, match="begin fresh episodes: attribute 'screen' is a Surface"):
        assert snapshot_state(_unreadable) == boundary_state()
    assert snapshot_state(lambda: {"rows": []}) == {"class": "snapshot", "rows": []}


def test_fresh_episodes_are_announced_when_actions_were_not_kept() -> None:
    log = EpisodeLog(2, 1, spaces.Discrete(2))
    log.record(0, np.zeros(2, np.int64), np.array([True, False]))
    with pytest.warns(MettaWarning, match=r"begin fresh episodes: the actions of rows \[1\]"):
        assert repeat_state(log) == boundary_state()


@pytest.mark.parametrize("found", [None, "sync_reset", 3, ["repeat"]])
def test_a_class_is_refused_when_nothing_is_saved_in_it(found: Any) -> None:
    with pytest.raises(StateError, match="known are snapshot, repeat, boundary"):
        class_of_state({"class": found})


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [(None, "no list"), ({}, "no list"), ([3], "no list"), ([{}, {}, {}], "3 environments were")],
)
def test_rows_are_refused_when_they_are_not_those_of_this_environment(
    rows: Any, complaint: str
) -> None:
    with pytest.raises(StateError, match=complaint):
        snapshot_rows({"class": "snapshot", "rows": rows}, 2)
