"""`TrainerHook`: what can be observed of a run, and by which names."""

from typing import Any, ClassVar, Literal

__all__ = ["EVENTS", "TrainerHook"]

_ALWAYS = (
    "trainer_state",
    "policy",
    "optimizer",
    "config",
    "registry",
    "eval_scores",
    "wandb_run",
    "stats_client",
    "checkpoint_hook",
)

EVENTS: dict[str, tuple[str, ...]] = {
    "on_training_start": _ALWAYS,
    "on_epoch_start": _ALWAYS,
    "on_rollout_start": _ALWAYS,
    "on_rollout_end": (*_ALWAYS, "rollout_stats", "experience"),
    "on_update_end": (*_ALWAYS, "losses_stats", "experience"),
    "on_epoch_end": (*_ALWAYS, "losses_stats", "experience"),
    "on_checkpoint": (*_ALWAYS, "checkpoint"),
    "on_training_end": (*_ALWAYS, "reason"),
    "on_exception": (*_ALWAYS, "exc"),
    "close": (*_ALWAYS, "exc"),
}
"""Event -> the values it offers."""


class TrainerHook:
    """Base of hooks: override the events you want, with parameters named after the values you want.

        class StopWhenSolved(TrainerHook):
            def on_epoch_end(self, trainer_state):
                if trainer_state.stats.mean_return > 475:
                    trainer_state.request_stop("solved")

    Every event offers ``trainer_state``, ``policy``, ``optimizer``, ``config``, ``registry`` (the run's
    state), ``eval_scores``, ``wandb_run``, ``stats_client`` and ``checkpoint_hook`` (None where absent);
    some offer more, as `EVENTS` lists. Hooks observe: they steer a run by
    ``trainer_state.request_stop`` alone, and what they return is ignored, except that
    ``on_training_start`` may return a policy whose weights the run begins with.
    """

    order: ClassVar[int] = 50
    """Hooks with smaller numbers receive an event first; ties go by registration."""
    role: ClassVar[str | None] = None
    """`checkpoint`: this is the run's `checkpoint_hook`, whose `saving` is its `RunSaver` or None."""
    ranks: Literal["master", "all"] = "master"
    """Where it receives events in a run of several processes: on the first rank, or on every one."""
    on_error: Literal["raise", "warn", "disable"] = "raise"
    """What an exception in this hook does: stop training, warn, or warn and disable the hook."""

    def on_training_start(self, *_: Any, **offers: Any) -> Any:
        """Before the first epoch."""

    def on_epoch_start(self, *_: Any, **offers: Any) -> Any:
        """Before an epoch's rollout."""

    def on_rollout_start(self, *_: Any, **offers: Any) -> Any:
        """Before experience is collected."""

    def on_rollout_end(self, *_: Any, **offers: Any) -> Any:
        """After collection: ``rollout_stats`` (one number per ended episode) and ``experience``."""

    def on_update_end(self, *_: Any, **offers: Any) -> Any:
        """After learning: ``losses_stats`` (means of the update) and ``experience``."""

    def on_epoch_end(self, *_: Any, **offers: Any) -> Any:
        """After an epoch is counted: ``losses_stats`` (all metrics of the epoch) and ``experience``."""

    def on_checkpoint(self, *_: Any, **offers: Any) -> Any:
        """Before a snapshot of the run is written: ``checkpoint``, whose metadata may be added to."""

    def on_training_end(self, *_: Any, **offers: Any) -> Any:
        """After the last epoch: ``reason``."""

    def on_exception(self, *_: Any, **offers: Any) -> Any:
        """When training failed or was interrupted by ``exc``, which exceptions here do not hide."""

    def close(self, *_: Any, **offers: Any) -> Any:
        """Release what the hook holds; always called, once per training, in reverse order."""
