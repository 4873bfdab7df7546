"""`MetricsHook`: logs all measurements of a run, row by row."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metta.agent.policy import Policy
from metta.loggers.events.stats_client import StatsClient
from metta.loggers.sinks.console import ConsoleSink
from metta.loggers.sinks.wandb_run import WandbRun, WandbSink
from metta.loggers.stats_logger import StatsLogger
from metta.rl.hooks.base import TrainerHook
from metta.rl.stats import (
    Span,
    SystemMonitor,
    cleanup_monitoring,
    compute_grad_stats,
    compute_weight_stats,
    experience_stats,
    hyperparameters_of,
    process_stats,
    setup_monitoring,
)
from metta.rl.training_state import StatsTracker, TrainerState, crossed
from metta.sim.scores import EvalRewardSummary
from metta.timing import Stopwatch
from metta.train.run_config import LoggingConfig

__all__ = ["MetricsHook"]


class MetricsHook(TrainerHook):
    """Times the phases of a run and logs a row of metrics every few epochs and at the end.

        trainer.add_hook(MetricsHook(wandb_run, stats_client, timer=Stopwatch()))

    Rows go to `logger`; if none is given, to W&B and, if `verbose`, to the console. A logger without
    W&B gets `wandb_run` too. The stats client, given here or the run's, receives epochs, episodes and signs
    of life. Settings left out are the run's. It may be added and removed in the middle of a run.
    """

    order: ClassVar[int] = 90

    def __init__(
        self,
        wandb_run: WandbRun | None = None,
        stats_client: StatsClient | None = None,
        timer: Stopwatch | None = None,
        verbose: bool = True,
        *,
        logger: StatsLogger | None = None,
        config: LoggingConfig | None = None,
        total_timesteps: int | None = None,
    ) -> None:
        self.wandb_run, self.stats_client, self.verbose = wandb_run, stats_client, verbose
        self.timer = timer or Stopwatch()
        self.logger = logger
        self.config = config
        self.total_timesteps = total_timesteps
        self._settings = config or LoggingConfig()
        self._is_open = False
        self._total: int | None = None
        self._logger: StatsLogger | None = None
        self._client: StatsClient | None = None
        self._monitor: SystemMonitor | None = None
        self._waiting = StatsTracker()
        """What the next row reports: the run's own statistics are cleared at the run's interval."""
        self._last_step = 0
        self._last_beat = -float("inf")
        self._last_scores: dict[str, float] = {}
        self._end: tuple[str, str] | None = None
        self._last_epoch: tuple[Mapping[str, float], Any, Any] = ({}, None, None)

    def on_training_start(
        self, trainer_state: TrainerState, config: Any, stats_client: Any
    ) -> None:
        """Begin to time, to look at the machine, and to show signs of life."""
        self._begin(trainer_state, config, stats_client)

    def on_rollout_start(self, trainer_state: TrainerState, config: Any, stats_client: Any) -> None:
        """Collecting begins."""
        self._begin(trainer_state, config, stats_client)
        self.timer.start("rollout")
        self._beat(trainer_state)

    def on_rollout_end(
        self,
        rollout_stats: Mapping[str, Sequence[float]],
        trainer_state: TrainerState,
        config: Any = None,
        stats_client: Any = None,
    ) -> None:
        """Collecting is over and learning begins; the rollout's statistics wait for the next row."""
        if self._is_open:
            self._waiting.add_rollout_stats(rollout_stats)
        self._begin(trainer_state, config, stats_client)
        self.timer.stop("rollout")
        self.timer.start("train")

    def on_update_end(self, trainer_state: TrainerState) -> None:
        """Learning is over; the rest of the epoch belongs to hooks."""
        if self._is_open:
            self.timer.stop("train")
            self.timer.start("hooks")
            self._beat(trainer_state)

    def on_epoch_end(
        self,
        losses_stats: Mapping[str, float],
        experience: Any,
        policy: Policy,
        optimizer: Any,  # noqa: ARG002  # reason: the documented signature of this hook
        trainer_state: TrainerState,
        config: Any = None,
        stats_client: Any = None,
    ) -> None:
        """Log a row when an interval has passed."""
        self._begin(trainer_state, config, stats_client)
        self.timer.stop("hooks")
        self._last_epoch = losses_stats, experience, policy
        before, epoch = self._waiting.stats_epoch_start, trainer_state.epoch
        is_due = crossed(before, epoch, self._settings.log_interval)
        if is_due or self._is_over(trainer_state):  # the last row belongs to the last checkpoint
            self._log_epochs(trainer_state)
        self._log_late_scores(trainer_state)
        self._beat(trainer_state)

    def _is_over(self, state: TrainerState) -> bool:
        """Whether this epoch is the last, as far as is known; a run that a signal stops will continue."""
        if state.shared.get("stop_signal") is not None:
            return False
        is_done = self._total is not None and state.agent_step - state.first_step >= self._total
        return is_done or state.stop_reason is not None

    def on_training_end(
        self, trainer_state: TrainerState, config: Any, stats_client: Any, reason: str
    ) -> None:
        """Log epochs that wait and scores that came last; `close` notes the end."""
        self._begin(trainer_state, config, stats_client)
        # a run that a signal stops will continue: its next row is that of the whole interval
        will_go_on = trainer_state.shared.get("stop_signal") is not None
        if trainer_state.epoch > self._waiting.stats_epoch_start and not will_go_on:
            self._log_epochs(trainer_state)
        elif self._shown_scores(trainer_state).to_metrics() != self._last_scores:
            self._log_row(trainer_state, {}, {})
        self._log_late_scores(trainer_state)
        # a signal in the last moments of a run that is done stops nothing but evaluations
        is_stopped = trainer_state.stop_reason == reason
        if will_go_on and trainer_state.owes_scores:
            is_stopped, reason = True, trainer_state.stop_reason or reason
        self._end = reason, "stopped" if is_stopped else "done"

    def on_exception(self, exc: BaseException) -> None:
        """Remember how the run ended."""
        stopped = isinstance(exc, KeyboardInterrupt)
        self._end = f"{type(exc).__name__}: {exc}", "stopped" if stopped else "failed"

    def close(self, trainer_state: TrainerState | None = None) -> None:
        """Note the end, deliver what was logged, release everything; another training opens it again."""
        if not self._is_open:
            return
        self._is_open = False
        if trainer_state is not None:
            self._end_run(trainer_state)
        self.timer.stop_all()
        self._last_epoch = {}, None, None
        cleanup_monitoring(self._monitor)
        self._monitor = None
        if self._logger is not None:
            self._logger.close()

    def _begin(self, state: TrainerState, config: Any, stats_client: Any) -> None:
        """Open at the first event, whichever it is."""
        if self._is_open:
            return
        self._is_open = True
        trainer = getattr(config, "trainer", config)
        self._settings = self.config or getattr(trainer, "logging", None) or LoggingConfig()
        self._client = self.stats_client or stats_client
        self._total = self.total_timesteps or getattr(trainer, "total_timesteps", None)
        self._open_logger(state)
        if self._settings.monitor_seconds:
            self._monitor = setup_monitoring(self._settings.monitor_seconds)
        self._last_step = state.agent_step
        self._last_scores = self._shown_scores(state).to_metrics()
        stats, constants = state.stats, hyperparameters_of(config)
        if self._client is not None:
            name = str(state.shared.get("run_name", "training"))
            curriculum = getattr(trainer, "curriculum", None)
            env = state.shared.get("env_name") or getattr(curriculum, "env", "-")
            about = {"env": str(env), **constants}
            if "layout" in state.shared:
                about["layout"] = state.shared["layout"]
            stats.stats_run_id = self._client.create_run(name, about, from_epoch=state.epoch)
        assert self._logger is not None
        last_row = self._logger.rewind(state.epoch, state.agent_step)
        self._logger.log_constants(
            {f"hyperparameters/{name}": number for name, number in constants.items()},
            agent_step=state.agent_step,
            epoch=state.epoch,
            as_event=self._client is None,  # the event `run_start` has them already
        )
        is_logged = last_row is not None and last_row.epoch == state.epoch
        if last_row is not None and is_logged:
            # with scores that no checkpoint has, where a crash came between
            metrics = last_row.metrics.items()
            self._last_scores = {name: n for name, n in metrics if name.startswith("eval_")}
        self._waiting = StatsTracker(
            {name: list(numbers) for name, numbers in stats.rollout_stats.items()},
            stats_epoch_start=stats.stats_epoch_start,
            recent_returns=stats.recent_returns,
        )
        was_due = crossed(stats.stats_epoch_start, state.epoch, self._settings.log_interval)
        if is_logged or (last_row is None and was_due):
            # a row of these epochs was logged, or it was due while this hook was not registered
            self._waiting.clear_rollout_stats(state.epoch)
        self.timer.start("total")
        self.timer.lap_all()

    def _open_logger(self, state: TrainerState) -> None:
        self._logger = self.logger or StatsLogger()
        if self.logger is None and self.verbose:
            end = None if self._total is None else state.first_step + self._total
            self._logger.add_sink(ConsoleSink(end))
        if self.wandb_run is not None and "wandb" not in self._logger.sinks:
            self._logger.add_sink(WandbSink(self.wandb_run))

    def _log_epochs(self, state: TrainerState) -> None:
        """A row of the epochs since the last one."""
        losses, experience, policy = self._last_epoch
        settings = self._settings
        first, epoch = self._waiting.stats_epoch_start, state.epoch
        sections = {"experience": experience_stats(experience)}
        if policy is not None and crossed(first, epoch, settings.grad_stats_interval):
            sections["grad"] = compute_grad_stats(policy)
        if policy is not None and crossed(first, epoch, settings.weight_stats_interval):
            sections["weights"] = compute_weight_stats(policy)
        if self._monitor is not None:
            sections["monitor"] = self._monitor.snapshot()
        self._record(state, first)
        self._log_row(state, losses, sections)
        self._waiting.clear_rollout_stats(epoch)

    def _log_row(
        self,
        state: TrainerState,
        losses: Mapping[str, float],
        sections: Mapping[str, Mapping[str, float]],
    ) -> None:
        assert self._logger is not None
        num_epochs = state.epoch - self._waiting.stats_epoch_start
        row = process_stats(
            self._waiting,
            losses,
            agent_step=state.agent_step,
            epoch=state.epoch,
            eval_scores=self._shown_scores(state),
            span=self._span(num_epochs, state.agent_step - self._last_step),
            sections=sections,
        )
        self._logger.log(row, agent_step=state.agent_step, epoch=state.epoch)
        self._last_step = state.agent_step
        self._last_scores = self._shown_scores(state).to_metrics()

    def _shown_scores(self, state: TrainerState) -> EvalRewardSummary:
        """Scores in rows of epochs: the last ones, unless scores come late and have separate rows."""
        return state.eval_scores if state.late_scores is None else EvalRewardSummary()

    def _log_late_scores(self, state: TrainerState) -> None:
        """A row for each policy that was scored in the background, of its own epoch."""
        assert self._logger is not None
        log = self._logger.event_log
        for epoch, agent_step, scores in state.late_scores or ():
            row = scores.to_metrics()
            self._logger.log(row, agent_step=agent_step, epoch=epoch, is_late=True)
            if self._client is None and log is not None:  # else the event exists already
                late = {**scores.to_dict(), "late_row": row}
                StatsClient(log).record_evaluation(epoch=epoch, agent_step=agent_step, scores=late)

    def _span(self, num_epochs: int, num_steps: int) -> Span:
        return Span(num_epochs, num_steps, self.timer.lap_all(), self.timer.elapsed_all())

    def _record(self, state: TrainerState, first: int) -> None:
        """Report to the stats client which episodes ended in which epochs."""
        client, stats, waiting = self._client, state.stats, self._waiting.rollout_stats
        if client is None or stats.stats_run_id is None:
            return
        stats.stats_epoch_id = client.create_epoch(stats.stats_run_id, first, state.epoch)
        if any(waiting.values()):
            client.record_episodes(stats.stats_run_id, stats.stats_epoch_id, waiting)

    def _beat(self, state: TrainerState) -> None:
        now, run_id = time.monotonic(), state.stats.stats_run_id
        if self._client is None or run_id is None:
            return
        if now - self._last_beat >= self._settings.heartbeat_seconds:
            self._last_beat = now
            self._client.heartbeat(run_id, agent_step=state.agent_step, epoch=state.epoch)

    def _end_run(self, state: TrainerState) -> None:
        """The last event, unless the hook leaves a run that continues."""
        run_id, end, self._end = state.stats.stats_run_id, self._end, None
        if self._client is not None and run_id is not None and end is not None:
            self._client.end_run(run_id, *end)
