"""THE loop: collect, learn, count, and stop when asked."""

from collections.abc import Callable

from metta.errors import RolloutError
from metta.rl.training_state import TrainerState

__all__ = ["run_training"]

StepFunction = Callable[[TrainerState], dict[str, float]]
"""One epoch: collects, learns, raises `agent_step`, and returns metrics."""

_MAX_IDLE_EPOCHS = 100
"""Epochs in a row without a step; a few happen where every row only resets."""

EpochListener = Callable[[TrainerState, dict[str, float]], None]


def run_training(
    state: TrainerState,
    step: StepFunction,
    *,
    until_step: int,
    on_epoch_end: EpochListener | None = None,
) -> dict[str, list[float]]:
    """Repeat epochs until `until_step` agent steps or a requested stop; returns metrics per epoch.

    A metric that an epoch did not report is NaN there, so all lists are equally long.
    """
    history: dict[str, list[float]] = {}
    num_epochs = num_idle = 0
    while state.agent_step < until_step and state.stop_reason is None:
        before = state.agent_step
        metrics = step(state)
        num_idle = 0 if state.agent_step > before else num_idle + 1
        if num_idle >= _MAX_IDLE_EPOCHS:
            raise RolloutError(
                f"{num_idle} epochs in a row collected no step, so training would never end; "
                "look at what collect_rollouts returns"
            )
        state.epoch += 1
        state.stats = metrics
        metrics = {"epoch": float(state.epoch), "agent_step": float(state.agent_step), **metrics}
        for name in dict.fromkeys([*history, *metrics]):
            missing = float("nan")
            column = history.setdefault(name, [missing] * num_epochs)
            column.append(metrics.get(name, missing))
        num_epochs += 1
        if on_epoch_end is not None:
            on_epoch_end(state, metrics)
    return history
