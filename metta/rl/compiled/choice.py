"""Which driver a run gets: the one asked for, or the faster one."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from metta.errors import ConfigError, DriverError, MettaWarning, did_you_mean
from metta.ops.threads import threads_set
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.compiled.cache import compiler_name
from metta.rl.compiled.driver import Announce, CompiledDriver
from metta.rl.compiled.synthetic_rollout import synthetic_rollout
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.driver import Driver, EagerDriver
from metta.rl.learn.numerics import NumericsPlan
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.learn.update import UpdateCoefs, UpdateRules
from metta.rl.learn.update_log import UpdateLog
from metta.train.train_config import TrainerConfig

__all__ = ["DRIVERS", "DriverChoice", "PlannedDriver", "compile_pays_off", "make_driver"]

_SWITCH = "METTA_COMPILE"
DRIVERS = ("eager", "step")
_SECONDS_PER_MINIBATCH, _SECONDS_PER_SAMPLE = 2e-3, 1e-6
_SECONDS_WORTH_COMPILING = 100.0


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
        """Run compiled code if it fits, else the eager driver."""
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
    """A driver of one of the `DRIVERS`; `announce` is called before a compiler runs."""
    if kind not in DRIVERS:
        raise ConfigError(f"driver={kind!r} is not one of {DRIVERS}{did_you_mean(kind, DRIVERS)}")
    if kind == "eager":
        return EagerDriver(optimizer)
    return CompiledDriver(optimizer, announce)


def compile_pays_off(config: TrainerConfig, num_samples: int, total_timesteps: int = 0) -> bool:
    """Whether a run with rollouts of `num_samples` is long enough to wait for a compiler.

    Its length is that of its settings or `total_timesteps`, whichever is more.

    Compiled minibatches save the overhead of each operation, and some time per sample. A run must save
    about three times what compiling takes, so that one that is stopped early has lost nothing either.
    """
    ppo = config.ppo
    size = ppo.minibatch_size
    minibatches = max(1, num_samples // size) if size else ppo.num_minibatches
    rollouts = max(config.total_timesteps, total_timesteps) / num_samples
    saved = (
        rollouts
        * ppo.update_epochs
        * (minibatches * _SECONDS_PER_MINIBATCH + num_samples * _SECONDS_PER_SAMPLE)
    )
    return saved > _SECONDS_WORTH_COMPILING


class DriverChoice:
    """Gives a `PPOOptimizer` its driver, before its first update and when it loads a saved plan."""

    def __init__(
        self,
        config: TrainerConfig,
        ppo: PPOOptimizer,
        buffer: RolloutBuffer,
        losses: list[CustomLoss],
        announce: Announce,
    ) -> None:
        self._config, self._ppo, self._buffer = config, ppo, buffer
        self._losses, self._announce = losses, announce

    def select_driver(self, kind: str) -> None:
        """The driver that was asked for, compiled if needed; `DriverError` if it is not available."""
        self._ppo.driver = make_driver(kind, self._ppo.optimizer, self._announce)
        if kind == "eager":
            return
        try:
            self._prepare()
        except ConfigError:
            # a loss that names a column which only a hook adds: the first update compiles, or reports it
            return

    def select_driver_for_run(self, plan: NumericsPlan, total_timesteps: int) -> NumericsPlan:
        """The plan with a driver in place of ``auto``.

        Decided by the length of the run and by what can be compiled, never by what is in the cache;
        with ``METTA_COMPILE=0`` in the environment it is eager.
        """
        may_compile = self._ppo.device.type == "cpu" and os.environ.get(_SWITCH) != "0"
        num_samples = self._buffer.rewards.numel()
        if not may_compile or not compile_pays_off(self._config, num_samples, total_timesteps):
            return replace(plan, driver="eager")
        if compiler_name() is None:
            self._announce(
                "no C++ compiler was found (looked for $CXX, g++ and clang++): updates run eagerly; "
                "compiled they would be faster, and this run is long enough"
            )
            return replace(plan, driver="eager")
        return self.select_driver_of_plan(replace(plan, driver="step"))

    def select_driver_of_plan(self, plan: NumericsPlan) -> NumericsPlan:
        """Use the driver of a plan if it is available here; returns the plan that is used."""
        kind, compiler = plan.driver, compiler_name()
        with threads_set(plan.threads):
            if kind == "eager" or compiler is None or not self._select_compiled():
                kind, compiler = "eager", ""
                self._ppo.driver = EagerDriver(self._ppo.optimizer)
        return replace(plan, driver=kind, compiler=compiler)

    def _select_compiled(self) -> bool:
        eager = EagerDriver(self._ppo.optimizer)
        compiled = CompiledDriver(self._ppo.optimizer, self._announce)
        self._ppo.driver = PlannedDriver(compiled, eager)
        try:
            self._prepare()
        except BaseException as error:
            self._ppo.driver = eager
            if not isinstance(error, ConfigError | DriverError):
                raise
            self._announce(f"updates run eagerly: {error}")
            return False
        return True

    def _prepare(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._ppo.prepare(synthetic_rollout(self._ppo.policy, self._buffer), self._losses)
