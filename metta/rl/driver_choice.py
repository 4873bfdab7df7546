"""Which driver a run gets: the one asked for, or the one that pays."""

import os
from dataclasses import replace

import torch

from metta.errors import ConfigError, DriverError
from metta.rl.compiled_driver import Announce, CompiledDriver
from metta.rl.custom_losses import CustomLoss
from metta.rl.drivers import EagerDriver, PlannedDriver, make_driver
from metta.rl.experience import RolloutBuffer
from metta.rl.graph_cache import compiler_name
from metta.rl.numerics import NumericsPlan, pays_back, threads_set
from metta.rl.ppo import PPOOptimizer
from metta.rl.rollout_data import drawn_rollout
from metta.train.train_config import TrainerConfig

__all__ = ["DriverChoice"]

_SWITCH = "METTA_COMPILE"


class DriverChoice:
    """Gives a `PPOOptimizer` its driver, before its first update and when it takes over a saved plan."""

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

    def use(self, kind: str) -> None:
        """The driver that was asked for, compiled where it must be; `DriverError` if it cannot be had."""
        self._ppo.driver = make_driver(kind, self._ppo.optimizer, self._announce)
        if kind == "eager":
            return
        try:
            self._prepare()
        except ConfigError:
            # a loss that names a column which only a hook adds: the first update compiles, or says so
            return

    def choose(self, plan: NumericsPlan, total_timesteps: int) -> NumericsPlan:
        """The plan with a driver in place of ``auto``.

        Decided by the length of the run and by what can be compiled, never by what lies in the cache;
        with ``METTA_COMPILE=0`` in the environment it is eager.
        """
        may_compile = self._ppo.device.type == "cpu" and os.environ.get(_SWITCH) != "0"
        num_samples = self._buffer.rewards.numel()
        if not may_compile or not pays_back(self._config, num_samples, total_timesteps):
            return replace(plan, driver="eager")
        if compiler_name() is None:
            self._announce(
                "no C++ compiler was found (looked for $CXX, g++ and clang++): updates run eagerly; "
                "compiled they would be faster, and this run is long enough"
            )
            return replace(plan, driver="eager")
        return self.adopt(replace(plan, driver="step"))

    def adopt(self, plan: NumericsPlan) -> NumericsPlan:
        """Use the driver of a plan, as far as it can be had here; returns what came of it."""
        kind, compiler = plan.driver, compiler_name()
        with threads_set(plan.threads):
            if kind == "eager" or compiler is None or not self._use_planned(kind):
                kind, compiler = "eager", ""
                self._ppo.driver = EagerDriver(self._ppo.optimizer)
        return replace(plan, driver=kind, compiler=compiler)

    def _use_planned(self, kind: str) -> bool:
        eager = EagerDriver(self._ppo.optimizer)
        compiled = CompiledDriver(kind, self._ppo.optimizer, self._announce)
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
            self._ppo.prepare(drawn_rollout(self._ppo.policy, self._buffer), self._losses)
