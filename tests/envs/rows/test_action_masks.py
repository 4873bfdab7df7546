from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.rows.action_masks import MaskLayout, mask_layout_of


@pytest.mark.parametrize(
    ("space", "part_sizes"),
    [
        (spaces.Discrete(4), (4,)),
        (spaces.Discrete(4, start=2), (4,)),
        (spaces.MultiDiscrete([2, 3]), (2, 3)),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), (2, 3, 4, 5)),
        (spaces.MultiBinary(3), (2, 2, 2)),
        (spaces.MultiBinary([2, 2]), (2, 2, 2, 2)),
    ],
)
def test_a_mask_has_an_entry_per_value_when_actions_are_discrete(
    space: Any, part_sizes: tuple[int, ...]
) -> None:
    layout = mask_layout_of(space)
    assert layout == MaskLayout(part_sizes)
    assert layout.size == sum(part_sizes)


def test_there_is_no_mask_when_actions_are_continuous() -> None:
    assert mask_layout_of(spaces.Box(-1, 1, (2,))) is None


def test_every_part_is_judged_when_masks_come_in_batches() -> None:
    masks = np.array([[1, 0, 0, 0, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], bool)
    found = MaskLayout((2, 3)).leaves_a_choice(masks)
    assert found.tolist() == [[True, True], [True, False], [False, True]]
    assert MaskLayout((5,)).leaves_a_choice(masks[:, :2]).tolist() == [[True], [True], [False]]
