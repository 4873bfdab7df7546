"""`LateEvaluations`: evaluations that are played while training continues, and what comes of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from metta.agent.policy import Policy
from metta.errors import MettaError
from metta.rl.evaluate.evaluator import Recorded
from metta.rl.evaluate.process import EvaluationRequest
from metta.sim.suite import SuiteResults

__all__ = ["LateEvaluations", "Outcome", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The result of an evaluation; replays that were wanted too are a separate outcome."""

    moment: EvaluationRequest
    results: SuiteResults | None
    error: MettaError | None = None
    """Why results are missing though scores were wanted."""
    recorded: Recorded = field(default_factory=Recorded)


def failed(moment: EvaluationRequest, error: MettaError) -> Outcome:
    """Missing scores are an error, missing replays are not."""
    if moment.is_scored:
        return Outcome(moment, None, error)
    return Outcome(moment, None, recorded=Recorded(failures={"all": str(error)}))


class LateEvaluations(Protocol):
    """What `EvaluationHook` needs of whoever plays for it. Outcomes come in the order of submission."""

    @property
    def unfinished(self) -> set[int]:
        """Epochs of which scores or replays are still to come, or were not collected."""
        ...

    @property
    def epochs(self) -> set[int]:
        """Epochs whose policies wait for their scores."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing may come at the moment, and what to do about it; empty if all is well."""
        ...

    def submit(
        self, moment: EvaluationRequest, policy: Policy, weights: Path | None = None
    ) -> None:
        """Evaluate the policy as it is now; never waits.

        With `weights`, a policy file that stays until then, its weights are taken from there.
        """
        ...

    def collect(self, *, wait: bool = False) -> list[Outcome]:
        """What ended since the last call; with `wait` everything that was submitted."""
        ...

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something ends, at most so long; without `seconds` until everything has."""
        ...

    def close(self) -> None:
        """End what was started, and forget what is not done; may be called again, and `submit` after it."""
        ...
