import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.backends.gymnasium_infos import final_observations, mask_rows, numbers_of_rows
from metta.envs.rows.action_masks import MaskLayout
from metta.errors import EnvError
from metta.spaces import obs_spec_of

ROWS = np.array([0, 2])


def test_numbers_are_found_when_columns_have_any_type() -> None:
    infos = {
        "score": np.array([0.5, 1.5, 2.5]),
        "won": np.array([True, False, True]),
        "mixed": np.array([np.float32(3), None, "text"], object),
        "_mixed": np.array([True, False, True]),
        "rare": np.array([0, 0, 9]),
        "_rare": np.array([False, False, True]),
        "_odd": np.array([7, 8, 9]),
        "vector": np.zeros((3, 2)),
        "nested": {"a": np.zeros(3)},
        "final_obs": np.array([None, None, None]),
    }
    assert numbers_of_rows(infos, ROWS) == [
        (0, {"score": 0.5, "won": 1.0, "mixed": 3.0, "_odd": 7.0}),
        (2, {"score": 2.5, "won": 1.0, "rare": 9.0, "_odd": 9.0}),
    ]


def test_rows_are_left_out_when_they_report_nothing() -> None:
    infos = {"rare": np.array([0, 0, 9]), "_rare": np.array([False, False, True])}
    assert numbers_of_rows(infos, ROWS) == [(2, {"rare": 9.0})]


def test_last_observations_are_found_when_they_come_as_objects_or_as_a_batch() -> None:
    spec = obs_spec_of(spaces.Box(0, 9, (1,)))
    batch = np.array([[4.0], [5.0], [6.0]], np.float32)
    objects = np.array([None, None, None], object)
    objects[0], objects[2] = batch[0], batch[2]
    for given in (batch, objects):
        out = spec.zeros(3)
        final_observations({"final_obs": given}, ROWS, spec, out)
        assert out["obs"][ROWS].ravel().tolist() == [4.0, 6.0]


def test_only_the_rows_asked_for_are_written_when_masks_are_copied() -> None:
    out = np.zeros((3, 2), bool)
    mask_rows({"action_mask": np.ones((3, 2))}, MaskLayout((2,)), out, ROWS, in_obs=False)
    assert out.tolist() == [[True, True], [False, False], [True, True]]


def test_the_rows_are_named_when_masks_are_not_filled_in() -> None:
    infos = {"action_mask": np.ones((3, 2)), "_action_mask": np.array([True, True, False])}
    with pytest.raises(EnvError, match=r"of rows \[2\]"):
        mask_rows(infos, MaskLayout((2,)), np.zeros((3, 2), bool), ROWS, in_obs=False)
