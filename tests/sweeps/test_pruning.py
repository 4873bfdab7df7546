"""Which trials are hopeless: known answers."""

import pytest

from metta.sweeps.pruning import PRUNERS, RUNGS, hopeless


@pytest.mark.parametrize(
    ("pruner", "value", "others", "is_pruned"),
    [
        ("none", -100.0, [1.0] * 50, False),
        ("median", 2.9, [1.0, 2.0, 3.0, 4.0], False),  # fewer than five others
        ("median", 2.9, [1.0, 2.0, 3.0, 4.0, 5.0], True),
        ("median", 3.0, [1.0, 2.0, 3.0, 4.0, 5.0], False),  # the median itself goes on
        ("asha", 0.0, [1.0], False),  # one other
        ("asha", 0.0, [1.0, 2.0], True),  # one of three goes on
        ("asha", 1.5, [1.0, 2.0], True),
        ("asha", 2.5, [1.0, 2.0], False),
        ("asha", 2.0, [2.0, 2.0], False),  # equals are not better
        ("asha", 4.5, [1.0, 2.0, 3.0, 4.0, 5.0], False),  # two of six
        ("asha", 3.5, [1.0, 2.0, 3.0, 4.0, 5.0], True),
    ],
)
def test_a_trial_is_pruned_when_enough_others_are_better(
    pruner: str, value: float, others: list[float], is_pruned: bool
) -> None:
    assert bool(hopeless(pruner, value, others)) is is_pruned


def test_rungs_are_shares_in_order_when_there_is_a_pruner() -> None:
    assert set(RUNGS) == set(PRUNERS)
    for rungs in RUNGS.values():
        assert list(rungs) == sorted(rungs)
        assert all(0 < share < 1 for share in rungs)
