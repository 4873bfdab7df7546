"""`RunConditions`: the settings of a run, and what else the last bits of its numbers depend on."""

import dataclasses
import functools
import os
import platform
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from metta.errors import InexactResumeError, MettaWarning
from metta.rl.learn.numerics import NumericsPlan
from metta.train.advice import FOR_COMPONENTS, Advice
from metta.train.changes import check_changes
from metta.versions import library_versions

__all__ = ["RunConditions", "machine_of"]

_VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip
"""Environment variables by which MKL, oneDNN, OpenBLAS and NumPy choose their code."""
_MODEL_FIELDS = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
"""Fields of ``/proc/cpuinfo`` that name a model, on x86 and on ARM; virtual machines share names."""


def machine_of(device: str = "cpu") -> dict[str, str]:
    """Libraries and processors, as far as they decide how numbers are rounded."""
    found = {
        **library_versions(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        **{name: os.environ.get(name) or "not set" for name in _VARIABLES},
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = f"{torch.version.cuda}, cudnn {torch.backends.cudnn.version()}"
    return found


@functools.cache
def _processor() -> str:
    """The model of the first processor."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    found = [f"{name} {fields[name]}" for name in _MODEL_FIELDS if fields.get(name)]
    return ", ".join(found).removeprefix("model name ") or platform.machine()


class RunConditions:
    """Settings, the plan of the numbers and the machine under them: saved with a run, obeyed on resume.

    Threads and a driver that were not chosen are those that the run began with; `select_saved` is called
    with the plan if that is another driver. Other settings are a `ConfigError`. Any other difference
    is an `InexactResumeError`, or with `allow_inexact` a warning. A plan whose driver is ``auto`` is open
    until `complete_plan`, which calls `select`.
    """

    state_name = "conditions"
    state_version = 1
    in_digest = False

    def __init__(
        self,
        plan: NumericsPlan,
        *,
        are_set: Collection[str] = (),
        select_saved: Callable[[NumericsPlan], NumericsPlan] | None = None,
        select: Callable[[NumericsPlan, int], NumericsPlan] | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self.plan = plan
        self.layout: dict[str, Any] = {}
        """Where the run is computed, as plain data: not compared, as it decides no bits."""
        self.notes: list[str] = []
        """What is said about it when training begins."""
        self.settings: dict[str, Any] = {}
        """What the run is begun with, by name, as plain data: see `plain_settings`."""
        self.allow_inexact = False
        self.differences: list[str] = []
        """How the run that continues here differs from the one that was saved."""
        self._open = [name for name in ("threads", "driver") if name not in are_set]
        self._select_saved, self._select, self._announce = select_saved, select, announce
        self._is_complete = False
        self._selected: tuple[NumericsPlan, NumericsPlan] | None = None
        self._compared: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Plan, machine and settings, as plain data."""
        return {
            "plan": dataclasses.asdict(self.plan),
            "machine": machine_of(self.plan.device),
            **({"layout": self.layout} if self.layout else {}),
            "settings": dict(self.settings),
        }

    def complete_plan(self, total_timesteps: int = 0) -> None:
        """Decide what was left open, before the first update; afterwards it stays as it is.

        The run's length is that of its settings or `total_timesteps`, whichever is more.
        """
        if self._is_complete:
            return
        if self._compared is not None:
            self.plan = self._plan_after(self._compared)
        if self.plan.driver == "auto" and self._select is not None:
            self.plan = self._select(self.plan, total_timesteps)
        self._is_complete = True  # not before: interrupting a compiler leaves the choice open
        if self._announce is not None:
            for line in (self.plan.describe(), *self.notes):
                self._announce(line)

    def follow_plan(self, plan: Mapping[str, Any]) -> None:
        """Compute as the first rank of a run does."""
        self.plan, self._is_complete = NumericsPlan(**plan), True

    def compare(
        self,
        state: Mapping[str, Any],
        where: str = "the checkpoint",
        advice: Advice = FOR_COMPONENTS,
    ) -> None:
        """Refuse to resume, or warn once, where the saved conditions differ from these.

        A refusal ends with the `advice`. Checkpoints of before they held settings are compared by the rest.
        """
        if state is self._compared:
            return
        check_changes(state.get("settings", {}), self.settings, where, advice)
        self._compared = state
        self.differences = [
            *_differences(self._saved_plan(state), dataclasses.asdict(self._plan_after(state))),
            *_differences(state["machine"], self._machine_like(state["machine"])),
        ]
        if self.differences:
            self._refuse_or_warn("; ".join(self.differences), advice)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the saved plan over as far as it was left open; the rest must be the same."""
        self.compare(state)
        self.plan = self._plan_after(state)

    def _plan_after(self, state: Mapping[str, Any]) -> NumericsPlan:
        saved = self._saved_plan(state)
        plan = dataclasses.replace(self.plan, **{name: saved[name] for name in self._open})
        compiled_alike = plan.driver in ("eager", "auto") or plan.threads == self.plan.threads
        if self._select_saved is None or (plan.driver == self.plan.driver and compiled_alike):
            return plan
        if self._selected is None or self._selected[0] != plan:
            self._selected = plan, self._select_saved(plan)
        return self._selected[1]

    def _machine_like(self, saved: Mapping[str, Any]) -> dict[str, str]:
        """This machine, in the saved fields: checkpoints of earlier versions hold fewer."""
        return {name: v for name, v in machine_of(self.plan.device).items() if name in saved}

    def _saved_plan(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Plans from before updates were compiled name no compiler, from before any update no driver."""
        saved = {"compiler": "", **state["plan"]}
        if saved["driver"] == "auto":
            saved |= {"driver": self.plan.driver, "compiler": self.plan.compiler}
        return saved

    def _refuse_or_warn(self, found: str, advice: Advice) -> None:
        if not self.allow_inexact:
            raise InexactResumeError(
                f"this run was saved under other conditions: {found}. It would continue with other numbers "
                "than if it had not been stopped; continue under the old conditions, or accept that with "
                f"{advice.inexact}"
            )
        warnings.warn(
            f"this run continues under other conditions, so it differs from an uninterrupted one: {found}",
            MettaWarning,
            stacklevel=4,
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys([*before, *now])
    return [
        f"{name} was {before.get(name)}, now {now.get(name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]
