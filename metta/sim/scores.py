"""What evaluations found, by category and by simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EvalRewardSummary"]

_SEPARATOR = "/"


@dataclass
class EvalRewardSummary:
    """Mean return per agent and episode; simulations are named ``category/simulation``.

    The score of a category is the mean of its simulations.
    """

    simulation_scores: dict[str, float] = field(default_factory=dict)
    lower_bound: float | None = None
    """Lower end of the 95 % interval of `avg_category_score`: how policies are ranked; None: unknown."""

    @property
    def category_scores(self) -> dict[str, float]:
        """Score of each category, in the order in which they appeared."""
        members: dict[str, list[float]] = {}
        for name, score in self.simulation_scores.items():
            members.setdefault(name.split(_SEPARATOR, 1)[0], []).append(score)
        return {category: sum(scores) / len(scores) for category, scores in members.items()}

    @property
    def avg_category_score(self) -> float | None:
        """Mean over categories; None before the first evaluation."""
        scores = self.category_scores.values()
        return sum(scores) / len(scores) if scores else None

    @property
    def avg_simulation_score(self) -> float | None:
        """Mean over simulations; None before the first evaluation."""
        scores = self.simulation_scores.values()
        return sum(scores) / len(scores) if scores else None

    def to_metrics(self) -> dict[str, float]:
        """``eval_<category>/score`` and ``eval_<category>/<simulation>``."""
        metrics = {f"eval_{name}/score": score for name, score in self.category_scores.items()}
        return metrics | {f"eval_{name}": score for name, score in self.simulation_scores.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = {"simulation_scores": dict(self.simulation_scores)}
        return found if self.lower_bound is None else {**found, "lower_bound": self.lower_bound}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EvalRewardSummary":
        """Rebuild what `to_dict` returned."""
        scores = {str(name): float(score) for name, score in data["simulation_scores"].items()}
        lower_bound = data.get("lower_bound")
        return cls(scores, None if lower_bound is None else float(lower_bound))
