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
    """Gives a `PPOOptimizer` its driver, at the start of a run and when it takes over a saved plan."""

    def __init__(
        self,
        ppo: PPOOptimizer,
        buffer: RolloutBuffer,
        losses: list[CustomLoss],
        announce: Announce,
    ) -> None:
        self._ppo, self._buffer, self._losses, self._announce = ppo, buffer, losses, announce

    def choose(self, config: TrainerConfig) -> str:
        """The kind that `config` asks for, compiled where it must be; returns its name.

        `auto` is decided by the length of the run and by what can be compiled, never by what lies in the
        cache; with ``METTA_COMPILE=0`` in the environment it is eager. A driver that was asked for and
        cannot be had is a `DriverError`.
        """
        kind = config.numerics.driver
        if kind != "auto":
            self._use(kind)
            return kind
        may_compile = self._ppo.device.type == "cpu" and os.environ.get(_SWITCH) != "0"
        if may_compile and pays_back(config, self._buffer.rewards.numel()):
            if compiler_name() is None:
                self._announce(
                    "no C++ compiler was found (looked for $CXX, g++ and clang++): updates run eagerly; "
                    "compiled they would be faster, and this run is long enough"
                )
            elif self._use_planned("step"):
                return "step"
        return "eager"

    def adopt(self, plan: NumericsPlan) -> NumericsPlan:
        """Take over the driver of a saved plan, as far as it can be had here."""
        kind, compiler = plan.driver, compiler_name()
        with threads_set(plan.threads):
            if kind == "eager" or compiler is None or not self._use_planned(kind):
                kind, compiler = "eager", ""
                self._ppo.driver = EagerDriver(self._ppo.optimizer)
        return replace(plan, driver=kind, compiler=compiler)

    def _use(self, kind: str) -> None:
        self._ppo.driver = make_driver(kind, self._ppo.optimizer, self._announce)
        if kind == "eager":
            return
        try:
            self._prepare()
        except ConfigError:
            # a loss that names a column which only a hook adds: the first update compiles, or says so
            return

    def _use_planned(self, kind: str) -> bool:
        eager = EagerDriver(self._ppo.optimizer)
        compiled = CompiledDriver(kind, self._ppo.optimizer, self._announce)
        self._ppo.driver = PlannedDriver(compiled, eager)
        try:
            self._prepare()
        except (ConfigError, DriverError) as error:
            self._announce(f"updates run eagerly: {error}")
            self._ppo.driver = eager
            return False
        return True

    def _prepare(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._ppo.prepare(drawn_rollout(self._ppo.policy, self._buffer), self._losses)
