"""What the doctor found: findings with cause and cure, in one typed report."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Finding", "Report", "Severity", "verdict"]

Severity = Literal["ok", "note", "warning", "fault"]
"""From harmless to harmful: a `note` is worth knowing, a `warning` will probably hurt, a `fault` will."""


@dataclass(frozen=True)
class Finding:
    """The verdict of one check."""

    name: str
    """Of the check, e.g. ``seeding``."""
    severity: Severity
    found: str
    """What was seen, with numbers."""
    cause: str = ""
    """Why that is so, or why it hurts; empty if nothing is wrong."""
    cure: str = ""
    """What to change; empty if there is nothing to change."""


def verdict(name: str, severity: Severity, found: str, cause: str, cure: str) -> Finding:
    """A finding with cause and cure, unless it is ok."""
    return Finding(name, severity, found, *(("", "") if severity == "ok" else (cause, cure)))


@dataclass(frozen=True)
class Report:
    """The findings about an environment, a network and losses; ``print(report)`` shows them."""

    env: str
    findings: tuple[Finding, ...]
    recipe: tuple[str, ...] = ()
    """What training would choose for this environment by itself, in lines; apart from the findings."""

    @property
    def is_healthy(self) -> bool:
        """Whether there is neither a warning nor a fault."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Warnings and faults."""
        return self.of("warning", "fault")

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Faults alone: with one of them, training fails or learns the wrong thing."""
        return self.of("fault")

    def of(self, *severities: Severity) -> tuple[Finding, ...]:
        """Findings of the given severities, in the order of the checks."""
        return tuple(finding for finding in self.findings if finding.severity in severities)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "env": self.env,
            "healthy": self.is_healthy,
            "findings": [asdict(finding) for finding in self.findings],
            "recipe": list(self.recipe),
        }

    def verdict(self) -> str:
        """The whole report in one line."""
        if self.is_healthy:
            return f"{self.env}: nothing wrong in {len(self.findings)} checks"
        counts = {kind: len(self.of(kind)) for kind in ("fault", "warning")}
        parts = [f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in counts.items() if n]
        return f"{self.env}: {' and '.join(parts)} in {len(self.findings)} checks"

    def __str__(self) -> str:
        recipe = [f"{'recipe':<8} {line}" for line in self.recipe]
        return "\n".join([*_lines(self.findings), *recipe, self.verdict()])


def _lines(findings: Iterable[Finding]) -> Iterable[str]:
    for finding in findings:
        yield f"{finding.severity:<8} {finding.name}: {finding.found}"
        if finding.cause:
            yield f"{'':<8}   cause: {finding.cause}"
        if finding.cure:
            yield f"{'':<8}   cure:  {finding.cure}"
