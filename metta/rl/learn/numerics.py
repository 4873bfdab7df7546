"""What decides the last bits of a run's numbers, resolved once and then kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from metta.agent.policy import Policy
from metta.errors import ConfigError
from metta.ops.threads import threads_set

__all__ = [
    "NumericsPlan",
    "resolve_device",
    "resolve_plan",
    "threads_for",
]

_SMALL_POLICY = 1_000_000
"""Parameters below which one thread beats several."""
_LITTLE_WORK = 100_000_000
"""Parameters times samples of a minibatch below which one thread beats several."""


@dataclass(frozen=True)
class NumericsPlan:
    """Thread count, actor, driver, groups and dtype: equal plans on one machine give equal bits."""

    threads: int
    actor: str
    driver: str
    groups: int
    dtype: str
    device: str
    compiler: str = ""
    """What compiled the update; empty for eager ones."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run a block with this plan's thread count and put the old one back."""
        with threads_set(self.threads):
            yield

    def describe(self) -> str:
        """One line for people."""
        threads, groups = ("" if n == 1 else "s" for n in (self.threads, self.groups))
        compiled = f" compiled by {self.compiler}" if self.compiler else ""
        return (
            f"{self.device}, {self.threads} thread{threads}, {self.actor} actor, "
            f"{self.driver} update{compiled}, {self.groups} group{groups}, {self.dtype}"
        )


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that a setting names; ``auto`` is a GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        # read back: a device without data (meta) cannot train
        torch.zeros(1, device=resolved).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):
            reason = "torch does not know this kind of device"
        raise ConfigError(
            f"device={str(device)!r} cannot be used here: {reason}; use 'cpu' or 'auto'"
        ) from error
    return resolved


def threads_for(policy: Policy, num_samples: int = 1) -> int:
    """One thread for small workloads, on which several would only wait for each other.

    The work is that of one minibatch of `num_samples`; convolutions are never small.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    convolves = any(isinstance(module, torch.nn.Conv2d) for module in policy.modules())
    is_little = size < _SMALL_POLICY and size * num_samples < _LITTLE_WORK
    return 1 if is_little and not convolves else torch.get_num_threads()


def resolve_plan(
    policy: Policy,
    *,
    threads: int,
    num_groups: int,
    actor: str,
    driver: str,
    compiler: str = "",
) -> NumericsPlan:
    """What was chosen, in one place; `actor` and `driver` are those that were built, or ``auto``."""
    return NumericsPlan(
        threads=threads,
        actor=actor,
        driver=driver,
        groups=num_groups,
        dtype=str(policy.precision if policy.dtype == torch.float32 else policy.dtype),
        device=str(policy.device),
        compiler=compiler,
    )
