"""How much faster one job is than another, and how sure that is."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Comparison", "compare_runs"]

_DRAWS = 2000
_OUTSIDE = 0.025
"""Share of the draws beyond each end of a 95 % interval."""


@dataclass(frozen=True)
class Comparison:
    """A ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def compare_runs(
    own: Sequence[float | None], baseline: Sequence[float | None]
) -> Comparison | None:
    """Median of the ratios within each repetition, with a bootstrap interval over repetitions.

    Both jobs of a repetition met the same machine, so their ratio is steadier than either. Repetitions
    in which one of them failed are left out; None where none is left.
    """
    pairs = zip(own, baseline, strict=True)
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    if not ratios:
        return None
    generator = random.Random(0)
    drawn = sorted(
        statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(_DRAWS)
    )
    outside = round(_OUTSIDE * _DRAWS)
    return Comparison(statistics.median(ratios), drawn[outside], drawn[-1 - outside])
