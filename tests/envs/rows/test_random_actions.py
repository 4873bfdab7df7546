from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.rows.action_masks import draw_action

SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete(np.array([[2], [3]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-2.0, 0.5, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(np.array([-np.inf, 3.0]), np.array([-5.0, np.inf]), dtype=np.float64),
    spaces.Box(-1e308, 1e308, (1,), np.float64),
    spaces.Box(0, 255, (2, 2), np.uint8),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_are_inside_and_differ_when_drawn(space: spaces.Space[Any]) -> None:
    generator = np.random.default_rng(1)
    drawn = [draw_action(space, None, generator) for _ in range(200)]
    for action in drawn:
        assert isinstance(action, np.ndarray)
        assert (action.shape, action.dtype) == (space.shape, space.dtype)
        assert space.contains(action if action.shape else action[()])
    values = {action.tobytes() for action in drawn}
    assert len(values) >= min(space.nvec.prod() if hasattr(space, "nvec") else 3, 100)


def test_only_legal_actions_are_drawn_when_there_is_a_mask() -> None:
    generator = np.random.default_rng(1)
    mask = np.array([False, True, False, True, True])
    drawn = [draw_action(spaces.Discrete(5, start=10), mask, generator) for _ in range(60)]
    assert {int(action) for action in drawn} == {11, 13, 14}
    parts = spaces.MultiDiscrete([2, 3])
    drawn = [draw_action(parts, mask, generator) for _ in range(60)]
    assert {tuple(action.tolist()) for action in drawn} == {(1, 1), (1, 2)}
