"""How sure a score is: interquartile means, bootstrap intervals, probabilities of improvement.

Scores come in *strata*, one array for each simulation: what is drawn again is drawn inside its stratum
(Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metta.errors import ConfigError
from metta.seeding import numpy_generator

__all__ = [
    "CONFIDENCE",
    "Estimate",
    "Statistic",
    "best_by_lower_bound",
    "estimate",
    "interquartile_mean",
    "lower_bound_of",
    "mean_of_means",
    "missing_data",
    "pooled_interquartile_mean",
    "probability_of_improvement",
]

CONFIDENCE = 0.95
"""Share of cases in which an interval should contain the true value."""
_NUM_RESAMPLES = 2000
_MIN_COUNT = 5
"""Returns of a simulation from which the lower end of an interval is taken."""
_MAX_NUMBERS = 4_000_000
"""Numbers that are drawn at a time."""

Strata = Sequence[np.ndarray]
"""One array ``[..., n]`` per simulation; what is in front are independent repetitions."""
Statistic = Callable[[Strata], np.ndarray]
"""Reduces the last axis of all strata to one number ``[...]``."""


@dataclass(frozen=True)
class Estimate:
    """A number and the interval in which it lies with 95 % confidence."""

    value: float
    low: float
    high: float
    count: int
    """Scores that it was computed from."""

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return dict(vars(self))


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half ``[...]`` of scores ``[..., n]``; ``n // 4`` go at each end."""
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    middle: np.ndarray = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return middle


def pooled_interquartile_mean(strata: Strata) -> np.ndarray:
    """Interquartile mean of the scores of all simulations together."""
    return interquartile_mean(np.concatenate(list(strata), axis=-1))


def mean_of_means(strata: Strata) -> np.ndarray:
    """Mean over simulations of their mean scores: the score of a category."""
    means: np.ndarray = np.mean([np.mean(scores, axis=-1) for scores in strata], axis=0)
    return means


def estimate(statistic: Statistic, strata: Strata, *, seed: int = 0) -> Estimate:
    """A statistic of scores ``[n]`` per simulation, with its percentile bootstrap interval.

    estimate(pooled_interquartile_mean, [returns_of_cartpole, returns_of_acrobot])
    """
    checked = _checked(strata)
    resampled = [
        statistic(
            [_drawn(scores, size, seed, block, place) for place, scores in enumerate(checked)]
        )
        for block, size in enumerate(_blocks(sum(map(len, checked))))
    ]
    low, high = _interval(np.concatenate(resampled))
    return Estimate(float(statistic(checked)), low, high, sum(map(len, checked)))


def lower_bound_of(returns: Mapping[str, np.ndarray], *, seed: int = 0) -> float | None:
    """Lower end of the interval of the mean over categories of ``category/simulation`` -> returns ``[n]``.

    None if it cannot be computed: no simulation, one with fewer than 5 returns, for which intervals
    are far too narrow, or returns that are not finite.
    """
    if not returns or any(len(one) < _MIN_COUNT for one in returns.values()):
        return None
    if not all(np.isfinite(one).all() for one in returns.values()):
        return None
    places: dict[str, list[int]] = {}
    for place, name in enumerate(returns):
        places.setdefault(name.partition("/")[0], []).append(place)

    def mean_of_categories(strata: Strata) -> np.ndarray:
        means = [mean_of_means([strata[place] for place in own]) for own in places.values()]
        found: np.ndarray = np.mean(means, axis=0)
        return found

    return estimate(mean_of_categories, list(returns.values()), seed=seed).low


def probability_of_improvement(ours: Strata, others: Strata, *, seed: int = 0) -> Estimate:
    """Probability that a score of `mine` is above one of `theirs` in the same simulation; ties count half.

        P = mean over simulations of  P(X > Y) + P(X = Y) / 2

    Both sides have one array per simulation, in the same order.
    """
    mine, theirs = _checked(ours), _checked(others)
    if len(mine) != len(theirs):
        raise ConfigError(
            f"scores of {len(mine)} simulations cannot be compared with those of {len(theirs)}; compare "
            "the simulations that both have"
        )
    pairs = sum(len(x) * len(y) for x, y in zip(mine, theirs, strict=True))
    resampled = []
    for block, size in enumerate(_blocks(pairs)):
        first = [_drawn(x, size, seed, block, 2 * place) for place, x in enumerate(mine)]
        second = [_drawn(y, size, seed, block, 2 * place + 1) for place, y in enumerate(theirs)]
        resampled.append(_improvement(first, second))
    low, high = _interval(np.concatenate(resampled))
    count = sum(map(len, mine)) + sum(map(len, theirs))
    return Estimate(float(_improvement(mine, theirs)), low, high, count)


def _improvement(ours: Strata, others: Strata) -> np.ndarray:
    shares = []
    for mine, theirs in zip(ours, others, strict=True):
        difference = np.sign(mine[..., :, None] - theirs[..., None, :])
        shares.append((difference.mean((-2, -1)) + 1.0) / 2.0)
    return np.asarray(np.mean(shares, axis=0))


def best_by_lower_bound(estimates: Mapping[str, Estimate]) -> str:
    """The name whose interval has the highest lower end: good, and known to be; the first of equals."""
    return max(estimates, key=lambda name: estimates[name].low)


def missing_data(counts: Mapping[str, int], needed: int, unit: str) -> str:
    """What is needed before intervals mean anything; empty where `counts` by name are enough."""
    short = {name: count for name, count in counts.items() if count < needed}
    if not short:
        return ""
    found = ", ".join(f"{name} has {count}" for name, count in short.items())
    return f"{found}; at least {needed} {unit} of each are needed"


def _checked(strata: Strata) -> list[np.ndarray]:
    arrays = [np.asarray(scores, np.float64) for scores in strata]
    if not arrays or any(scores.ndim != 1 or not len(scores) for scores in arrays):
        raise ConfigError("a simulation has no scores; leave it out, or play more episodes")
    if not all(np.isfinite(scores).all() for scores in arrays):
        raise ConfigError("scores must be finite numbers, but some are NaN or infinite")
    return arrays


def _blocks(numbers: int) -> list[int]:
    """How many repetitions are drawn at a time, so that memory stays small."""
    size = max(1, min(_NUM_RESAMPLES, _MAX_NUMBERS // max(1, numbers)))
    whole, rest = divmod(_NUM_RESAMPLES, size)
    return [size] * whole + [rest] * (rest > 0)


def _drawn(scores: np.ndarray, size: int, seed: int, block: int, place: int) -> np.ndarray:
    """``[size, n]`` scores of one stratum, drawn with replacement."""
    generator = numpy_generator(seed, "bootstrap", epoch=block, index=place)
    drawn: np.ndarray = scores[generator.integers(len(scores), size=(size, len(scores)))]
    return drawn


def _interval(resampled: np.ndarray) -> tuple[float, float]:
    outside = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(resampled, [outside, 1.0 - outside])
    return float(low), float(high)
