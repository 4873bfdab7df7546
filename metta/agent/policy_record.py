"""`PolicyRecord`: a reference to a saved policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metta.agent.policy import Policy

__all__ = ["PolicyRecord"]


@dataclass
class PolicyRecord:
    """Where a policy is kept and what is known about it; `policy` only if it is loaded."""

    uri: str
    name: str
    epoch: int
    agent_step: int
    metadata: dict[str, Any] = field(default_factory=dict)
    """Plain data, e.g. the score."""
    policy: Policy | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the loaded policy is left out."""
        found = {k: v for k, v in vars(self).items() if k != "policy"}
        return {**found, "metadata": dict(self.metadata)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicyRecord":
        """Rebuild what `to_dict` returned."""
        return cls(**{k: data[k] for k in ("uri", "name", "epoch", "agent_step", "metadata")})
