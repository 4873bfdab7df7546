"""What learns must be finite to be saved; what the world holds may be anything."""

from typing import Any

import numpy as np
import pytest
import torch

from metta.errors import NonFiniteError
from metta.store.checkpoints.finite_state import require_finite

INFINITE = torch.tensor([1.0, float("inf")])


@pytest.mark.parametrize(
    ("component", "state", "place"),
    [
        ("policy", {"layer.weight": INFINITE}, "layer.weight"),
        ("optimizer", {"state": {3: {"exp_avg": INFINITE}}}, "state/3/exp_avg"),
        ("optimizer", {"groups": [{"lr": torch.tensor(float("nan"))}]}, "groups/0/lr"),
        ("optimizer", {"param_groups": [{"lr": float("inf")}]}, "param_groups/0/lr"),
        ("collector", {"states": [{"hidden": INFINITE}]}, "states/0/hidden"),
        ("optimizer", {"half": INFINITE.to(torch.bfloat16)}, "half"),
        ("loss/mine", {"scales": (np.float32("nan"),)}, "scales/0"),
        ("loss/mine", {"scales": np.array([[1.0, np.inf]])}, "scales"),
    ],
)
def test_component_and_tensor_are_named_when_what_learns_is_not_finite(
    component: str, state: dict[str, Any], place: str
) -> None:
    with pytest.raises(NonFiniteError, match=rf"epoch 7 is not saved: {place} of '{component}'"):
        require_finite({component: {"version": 1, "state": state}}, 7)


def test_all_is_well_when_only_others_hold_infinities() -> None:
    learner = {
        "largest": torch.full((8,), torch.finfo(torch.float32).max),  # their sum is infinite
        "steps": torch.tensor([2**40]),
        "mask": torch.tensor([True]),
        "note": "nan",
        "x": None,
    }
    snapshot = {
        "optimizer": {"version": 1, "state": learner},
        "policy": {"version": 1, "state": {"weight": torch.zeros(2), "count": np.array([1])}},
        "environments": {"version": 1, "state": {"bounds": INFINITE}},
        "stats_tracker": {"version": 1, "state": {"bounds": INFINITE.numpy()}},
        "loss/mine": {"version": 1, "state": {"best": float("inf")}},
        "lossless": {"version": 1, "state": {"bounds": INFINITE}},
    }
    require_finite(snapshot, 1)
