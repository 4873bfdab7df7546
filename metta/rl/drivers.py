"""Drivers: ways to run the passes over a rollout. All do what `learn_minibatch` says.

`eager` calls it; `step` runs one minibatch as compiled code, `epoch` all minibatches of a pass.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from metta.errors import ConfigError, MettaWarning, did_you_mean
from metta.rl.compiled_driver import Announce, CompiledDriver
from metta.rl.optimizer import as_stepper
from metta.rl.rollout_data import STATE_PREFIX, cut_minibatch
from metta.rl.update import UpdateCoefs, UpdateRules, learn_minibatch
from metta.rl.update_report import UpdateLog

__all__ = ["DRIVERS", "Driver", "EagerDriver", "PlannedDriver", "make_driver"]

DRIVERS = ("eager", "step", "epoch")


class Driver(Protocol):
    """Runs the minibatches of an update, in order, until they are done or have stopped."""

    kind: str
    needs_valid: bool
    """Whether the columns must hold `valid` also where all samples are."""

    def run(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """Learn; `passes` gives the samples (or segments) of each minibatch of each pass.

        Returns what happened, still on the device.
        """
        ...

    def prepare(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """Do what can be done before the first such rollout is there; nothing is learned."""
        ...


class EagerDriver:
    """Torch, operation by operation; takes any network, loss and optimizer."""

    kind = "eager"
    needs_valid = False

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepper = as_stepper(optimizer)

    def run(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """One call per minibatch; statistics stay on the device until the end."""
        log = UpdateLog()
        stopped = torch.zeros((), dtype=torch.bool, device=coefs.clip.device)
        names = [name for name in columns if not name.startswith(STATE_PREFIX)]
        for index in (index for minibatches in passes for index in minibatches):
            batch = cut_minibatch(columns, names, index, rules.policy)
            row, stopped, metrics = learn_minibatch(rules, self._stepper, batch, coefs, stopped)
            log.add(row, metrics)
            if rules.is_over(stopped):
                break
        return log

    def prepare(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """There is nothing to prepare."""


class PlannedDriver:
    """Compiled code for the rollouts that it was prepared for, the eager driver for all others.

    Which of the two runs is a function of the rollout's shape and of the networks' plain Python values,
    never of the time at which something was compiled.
    """

    needs_valid = True

    def __init__(self, compiled: CompiledDriver, eager: EagerDriver) -> None:
        self.kind = compiled.kind
        self._compiled, self._eager = compiled, eager
        self._warned = False

    def run(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """By whichever can."""
        others = iter(passes)
        first = next(others)
        ready = self._compiled.is_ready_for(rules, columns, first)
        if not ready and not self._warned:
            self._warned = True
            warnings.warn(
                "this rollout has another shape than those the update was compiled for, or plain Python "
                "values of the policy or a loss have changed: such updates run eagerly",
                MettaWarning,
                stacklevel=2,
            )
        run = self._compiled.run_checked if ready else self._eager.run
        return run(rules, columns, chain([first], others), coefs)

    def prepare(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """Compile for rollouts like this one."""
        self._compiled.prepare(rules, columns, minibatches, coefs)


def make_driver(
    kind: str, optimizer: torch.optim.Optimizer, announce: Announce | None = None
) -> Driver:
    """A driver of one of the `DRIVERS`; `announce` is told when a compiler is about to run."""
    if kind not in DRIVERS:
        raise ConfigError(f"driver={kind!r} is not one of {DRIVERS}{did_you_mean(kind, DRIVERS)}")
    if kind == "eager":
        return EagerDriver(optimizer)
    return CompiledDriver(kind, optimizer, announce)
