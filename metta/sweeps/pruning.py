"""When a trial is hopeless: a pure rule over what trials have reported at the same share of their steps."""

import math
import statistics
from collections.abc import Mapping, Sequence

__all__ = ["PRUNERS", "RUNGS", "hopeless"]

PRUNERS = ("none", "median", "asha")
RUNGS: Mapping[str, tuple[float, ...]] = {
    "none": (),
    "median": (0.2, 0.4, 0.6, 0.8),
    "asha": (1 / 9, 1 / 3),
}
"""Shares of a run's steps at which a trial is judged."""
_FEWEST = {"median": 5, "asha": 2}
"""Other trials that must have reported before one is pruned."""
_REDUCTION = 3
"""One of so many trials passes a rung of ASHA."""


def hopeless(pruner: str, value: float, others: Sequence[float]) -> str:
    """Why a trial with this value is pruned, given what the others had at the same rung; else empty.

    ``median`` prunes what is below the median of the others (Golovin et al. 2017). ``asha`` keeps the best
    third of all that have come so far (Li et al. 2020).
    """
    if pruner not in _FEWEST or len(others) < _FEWEST[pruner]:
        return ""
    if pruner == "median":
        middle = statistics.median(others)
        return f"below the median {middle:.4g} of {len(others)} others" if value < middle else ""
    places = math.ceil((len(others) + 1) / _REDUCTION)
    num_better = sum(other > value for other in others)
    if num_better < places:
        return ""
    return f"not among the best {places} of {len(others) + 1}"
