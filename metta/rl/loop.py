"""THE loop: collect, learn, count, tell the hooks, and stop when asked."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from metta.errors import MettaWarning, PolicyError, RolloutError
from metta.rl.collect.sharded_collector import Experience, ShardedExperience, buffers_of
from metta.rl.hooks.registry import HookRegistry
from metta.rl.ranks import Ranks
from metta.rl.resume.shard_states import bring_shards
from metta.rl.training_components import TrainingComponents
from metta.rl.training_state import TrainerState, crossed
from metta.stateful import NamedState, StateRegistry
from metta.train.train_config import TrainerConfig

__all__ = [
    "Collected",
    "EpochFunction",
    "collect_rollout",
    "default_training_step",
    "learn_from_rollout",
    "run_epoch",
    "run_training",
    "save_requested",
    "warn_when_silent",
]

EpochFunction = Callable[
    [TrainerState, TrainingComponents, TrainerConfig, Experience], dict[str, float]
]
"""One epoch: collects, learns, raises `agent_step`, and returns metrics."""

EpochListener = Callable[[TrainerState, dict[str, float]], None]

_SILENT_STEPS = 10_000
"""Agent steps after which a run without any ended episode warns."""

_MAX_IDLE_EPOCHS = 100
"""Epochs in a row without a step; a few happen where every row only resets."""


class Collected(NamedTuple):
    """What the first phase of an epoch gives."""

    rollout_stats: dict[str, list[float]]
    """Lists with one number per episode that ended."""
    num_steps: int
    """Valid agent steps."""
    experience: Experience
    """What hooks are shown."""
    data: Any
    """What the second phase learns from."""


def run_epoch(
    state: TrainerState,
    hooks: HookRegistry,
    collect: Callable[[], Collected],
    learn: Callable[[Any], Mapping[str, float]],
    *,
    total_timesteps: int,
) -> dict[str, float]:
    """THE epoch: collect, learn, count and call the hooks; all interfaces run their epochs here.

    Returns the update's means and ``episode_return`` (of the last 100 episodes).
    """
    state.measure_progress(total_timesteps)
    hooks.fire("on_rollout_start")
    rollout = collect()
    state.agent_step += rollout.num_steps
    state.stats.add_rollout_stats(rollout.rollout_stats)
    experience = rollout.experience
    hooks.fire("on_rollout_end", rollout_stats=rollout.rollout_stats, experience=experience)
    losses = learn(rollout.data)
    hooks.fire("on_update_end", losses_stats=losses, experience=experience)
    state.epoch += 1
    return {"episode_return": state.stats.mean_return, **losses}


def collect_rollout(parts: TrainingComponents) -> tuple[dict[str, list[float]], int]:
    """The first phase: a rollout in the collector's buffer, with advantages and returns.

    Returns statistics of the episodes that ended, and valid agent steps.
    """
    with parts.plan.applied():
        rollout_stats, num_steps = parts.collector.collect()
        parts.state.stats.add_returns(rollout_stats["episode_return"])
        for buffer in buffers_of(parts.collector.experience):
            buffer.columns |= parts.ppo.compute_advantages(buffer.columns)
        if isinstance(parts.collector.experience, ShardedExperience):
            parts.collector.experience.share(parts.ranks)
    return rollout_stats, num_steps


def learn_from_rollout(
    parts: TrainingComponents, data: Experience | Mapping[str, Tensor]
) -> dict[str, float]:
    """The second phase: one update; returns its means."""
    with parts.plan.applied():
        return parts.ppo.update(data, parts.custom_losses, progress=parts.state.progress)


def default_training_step(
    state: TrainerState,
    components: TrainingComponents,
    config: TrainerConfig,
    experience: Experience,
) -> dict[str, float]:
    """One epoch: a rollout into `experience`, one update from it, and their counts in `state`.

    Returns the metrics of `run_epoch`.
    """
    if components.state is not state:
        components.use_state(state)
    if components.collector.experience is not experience:
        components.collector.experience = experience

    def collect() -> Collected:
        return Collected(*collect_rollout(components), experience, experience)

    learn = partial(learn_from_rollout, components)
    total = config.total_timesteps
    return run_epoch(state, components.hooks, collect, learn, total_timesteps=total)


def run_training(
    state: TrainerState,
    epoch: Callable[[TrainerState], dict[str, float]],
    *,
    until_step: int,
    parts: TrainingComponents | None = None,
    hooks: HookRegistry | None = None,
    on_epoch_end: EpochListener | None = None,
    keep_history: bool = True,
) -> dict[str, list[float]]:
    """Repeat epochs until `until_step` agent steps or a requested stop; returns metrics per epoch.

    `epoch` runs one epoch and returns its metrics. `hooks` are those of the `parts` where there are
    parts, and training then runs with the threads of their plan. A metric that an epoch did not report is
    NaN there, so all lists are equally long; they grow by about half a kilobyte in each epoch, and without
    `keep_history` they are empty. The function `on_epoch_end` is called after the hooks, and its
    exceptions reach its caller. Hooks are called at the end or on a failure, and are closed in any case.
    """
    if hooks is None:
        hooks = HookRegistry(state) if parts is None else parts.hooks
    history: dict[str, list[float]] = {}
    with nullcontext() if parts is None else parts.plan.applied(), _opened(hooks):
        state.checkpoint_requests.clear()  # of a training that failed
        _start(hooks)
        ranks = Ranks() if parts is None else parts.ranks
        for row in _epochs(state, epoch, until_step, hooks, ranks):
            if parts is not None:
                parts.environments.reset_before_checkpoint(state.epoch)
            if keep_history:
                _append(history, row)
            experience = None if parts is None else parts.collector.experience
            hooks.fire("on_epoch_end", losses_stats=row, experience=experience)
            agree(state, hooks, ranks)
            if parts is not None:
                _close_report(state, parts, is_over=state.agent_step >= until_step)
            save_requested(state, hooks)
            if on_epoch_end is not None:
                on_epoch_end(state, row)
        hooks.fire("on_training_end", reason=state.stop_reason or f"{until_step:,} steps are done")
        agree(state, hooks, ranks)
        save_requested(state, hooks)
    return history


@contextmanager
def _opened(hooks: HookRegistry) -> Iterator[None]:
    """Report a failure to hooks, and close them in any case."""
    hooks.open()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as exc:
        failure = exc
        hooks.fire_exception(exc)
        raise
    finally:
        hooks.close(failure)


def _start(hooks: HookRegistry) -> None:
    """A hook may hand over the policy to begin with; its weights go into the one that trains."""
    for policy in hooks.fire("on_training_start"):
        if policy is None or policy is hooks.policy:
            continue
        if not hasattr(policy, "state_dict") or hooks.policy is None:
            raise PolicyError(
                f"on_training_start returned a {type(policy).__name__}; return a policy of the same "
                "architecture as the one that trains, or None"
            )
        hooks.policy.load_state_dict(policy.state_dict())


def _epochs(
    state: TrainerState,
    run_one: Callable[[TrainerState], dict[str, float]],
    until_step: int,
    hooks: HookRegistry,
    ranks: Ranks,
) -> Iterator[dict[str, float]]:
    """Run epochs; yields the metrics of each with its counters."""
    num_idle = 0
    agree(state, hooks, ranks)
    while state.agent_step < until_step and _agreed_stop(state, ranks) is None:
        before, epoch = state.agent_step, state.epoch
        hooks.fire("on_epoch_start")
        state.metrics = run_one(state)
        state.epoch = epoch + 1  # whatever a user's epoch function did with it
        num_idle = 0 if state.agent_step > before else num_idle + 1
        if num_idle >= _MAX_IDLE_EPOCHS:
            raise RolloutError(
                f"{num_idle} epochs in a row collected no step, so training would never end; "
                "look at what is collected, and that the step raises agent_step"
            )
        yield {
            "epoch": float(state.epoch),
            "agent_step": float(state.agent_step),
            **state.metrics,
        }


def _append(history: dict[str, list[float]], row: dict[str, float]) -> None:
    """Add a row to columns that stay equally long."""
    num_rows = len(next(iter(history.values()), []))
    for name in dict.fromkeys([*history, *row]):
        missing = float("nan")
        history.setdefault(name, [missing] * num_rows).append(row.get(name, missing))


def _close_report(state: TrainerState, parts: TrainingComponents, *, is_over: bool) -> None:
    """Clear the statistics that a row of this epoch reports, if it has one, with or without hooks.

    A run that a signal stops will be resumed: its next row is that of the whole interval.
    """
    is_over = is_over or _agreed_stop(state, parts.ranks) is not None
    is_last = is_over and "stop_signal" not in state.shared
    first, interval = state.stats.stats_epoch_start, parts.config.logging.log_interval
    if is_last or crossed(first, state.epoch, interval):
        state.stats.clear_rollout_stats(state.epoch)


def agree(state: TrainerState, hooks: HookRegistry, ranks: Ranks) -> None:
    """All ranks stop where one is asked to, and bring their shards together where one is to be saved.

    A stop that is asked for after this is agreed on at the end of the next epoch.
    """
    if ranks.size == 1:
        return
    own = [state.stop_reason, state.shared.get("stop_signal"), bool(state.checkpoint_requests)]
    found = [json.loads(text) for text in ranks.share(json.dumps(own).encode())]
    reason, number = next(((r, n) for r, n, _ in found if r is not None), (None, None))
    state.agreed_stop = reason
    state.stop_reason = (
        reason or state.stop_reason
    )  # one that came meanwhile waits for the next time
    if number is not None:
        state.shared["stop_signal"] = number
    if any(is_saved for *_, is_saved in found):
        bring_shards(hooks.registry, ranks)


def _agreed_stop(state: TrainerState, ranks: Ranks) -> str | None:
    """Why to stop now; with several ranks, only what all of them know."""
    return state.stop_reason if ranks.size == 1 else state.agreed_stop


def save_requested(state: TrainerState, hooks: HookRegistry) -> None:
    """Take and write the checkpoints that were asked for, now that every hook has received the epoch."""
    requests = state.checkpoint_requests.copy()
    state.checkpoint_requests.clear()
    registry = hooks.registry
    if registry is None and requests:
        registry = StateRegistry([hooks.policy, NamedState("optimizer", hooks.optimizer)])
    for request in requests:
        checkpoint = request.take(registry, hooks.policy, state)
        if checkpoint is not None:
            hooks.fire("on_checkpoint", checkpoint=checkpoint)
            request.write(checkpoint)


def warn_when_silent(state: TrainerState, num_episodes: int) -> None:
    """Warn the caller's caller if no episode has ended after many steps."""
    if num_episodes == 0 and state.agent_step >= _SILENT_STEPS:
        warnings.warn(
            f"no episode ended in {state.agent_step:,} steps, so there is no return to "
            "report; if episodes need not end, cut them: wrappers=[TimeLimit(1000)]",
            MettaWarning,
            stacklevel=3,
        )
