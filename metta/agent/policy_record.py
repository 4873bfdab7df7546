"""`PolicyRecord`: a reference to a saved policy, and `policy_of` what holds one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from metta.agent.policy import Policy
from metta.errors import PolicyError

__all__ = ["HasPolicy", "PolicyRecord", "policy_of"]


class HasPolicy(Protocol):
    """What holds a policy: a `LoadedPolicy`, a trainer."""

    policy: Policy


def policy_of(given: Policy | HasPolicy) -> Policy:
    """The policy itself, given bare or inside what `load_policy` returned; `PolicyError` for others."""
    found = given if isinstance(given, Policy) else getattr(given, "policy", None)
    if not isinstance(found, Policy):
        raise PolicyError(
            f"a policy is needed to play episodes, found a {type(given).__name__}; pass trainer.policy, "
            "what metta.load_policy returned, or your network as metta.Policy(network, observation_space, "
            "action_space)"
        )
    return found


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
