"""`profile_run`: a few epochs of a set-up, timed, sampled and traced one after the other."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metta.envs.backends.sharded import shards_of
from metta.errors import ConfigError
from metta.files import atomic_write, atomic_write_text
from metta.loggers.monitor import children_rss_mib, peak_rss_mib
from metta.loggers.sinks.console import ConsoleSink
from metta.loggers.stats_logger import StatsLogger
from metta.private_folders import temporary_folder
from metta.profiling.flame_svg import flame_graph
from metta.profiling.phase_timer import FIRST, EventEdge, PhaseTimer
from metta.profiling.stack_sampler import StackSampler
from metta.rl.collect.sharded_collector import collectors_of
from metta.rl.components.trainer import Trainer
from metta.rl.hooks.metrics import MetricsHook
from metta.rl.training_components import TrainingComponents
from metta.train.train_config import TrainingConfig

__all__ = ["Profile", "follow_profile", "profile_run"]


@dataclass
class Profile:
    """Results; flame graph and trace are files."""

    phases: dict[str, float]
    """Seconds by phase, of all timed epochs together."""
    epochs: int
    steps: int
    conditions: str
    """Device, threads, actor and the like."""
    peak_rss_mib: float
    """Of this process, until the timed epochs were over."""
    workers_rss_mib: float
    """Of processes below it, at the end of the timed epochs; shared pages count in each."""
    ahead_seconds: float = 0.0
    """Seconds in which rollouts were collected elsewhere while this process learned; in no phase."""

    @property
    def seconds(self) -> float:
        """Wall time of the timed epochs."""
        return sum(self.phases.values())

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the whole by phase."""
        return {name: seconds / self.seconds for name, seconds in self.phases.items()}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A table: phase, seconds, share, microseconds per step."""
        found = [("phase", "seconds", "share", "us per step")]
        for name, seconds in {**self.phases, "whole": self.seconds}.items():
            share, per_step = seconds / self.seconds, seconds / self.steps * 1e6
            found.append((name, f"{seconds:.3f}", f"{share:.1%}", f"{per_step:.2f}"))
        return found

    def describe(self) -> str:
        """One line for people."""
        workers = f", workers {self.workers_rss_mib:,.0f} MiB" if self.workers_rss_mib else ""
        ahead = f"; {self.ahead_seconds:.3f} s of collecting beside learning"
        return (
            f"{self.epochs} epochs, {self.steps:,} steps, {self.steps / self.seconds:,.0f} steps/s; "
            f"{self.conditions}; peak {self.peak_rss_mib:,.0f} MiB{workers}"
            f"{ahead if self.ahead_seconds else ''}"
        )


def profile_run(
    config: TrainingConfig,
    folder: Path,
    *,
    epochs: int = 5,
    warmup: int = 2,
    provenance: Mapping[str, Any] | None = None,
) -> Profile:
    """Train in a temporary folder and write what was seen to `folder`.

    After the `warmup`, `epochs` are timed, as many are sampled, and one is traced, separately, so that none
    slows the others. W&B, evaluation and progress are off; all else is as in a run of this `config` and
    `provenance`, however few its epochs are here. Files: ``flame.svg``, ``stacks.folded`` and
    ``trace.json``, which chrome://tracing and Perfetto open. In a run of several ranks these are of the
    first one; the others call `follow_profile`.
    """
    if epochs < 1 or warmup < 1:
        raise ConfigError(f"epochs={epochs}, warmup={warmup}; give at least 1 of each")
    with (
        temporary_folder("profile") as run,
        Trainer(_without_services(config), run_dir=run, provenance=provenance) as trainer,
    ):
        _hide_progress(trainer)
        _lengthen(trainer, warmup + 2 * epochs + 1)
        session = _Session(trainer, epochs, warmup)
        trainer.train()
    return session.finish(folder)


def follow_profile(config: TrainingConfig, *, epochs: int = 5, warmup: int = 2) -> None:
    """Train as a rank that is not the first, as long as `profile_run` does there."""
    with Trainer(_without_services(config)) as trainer:
        _lengthen(trainer, warmup + 2 * epochs + 1)
        trainer.train()


def _without_services(config: TrainingConfig) -> TrainingConfig:
    """The settings without services that cost time or write elsewhere."""
    trainer = config.trainer
    trainer = dataclasses.replace(
        trainer,
        evaluation=dataclasses.replace(trainer.evaluation, eval_episodes=0),
        logging=dataclasses.replace(
            trainer.logging, wandb=dataclasses.replace(trainer.logging.wandb, mode="off")
        ),
    )
    return dataclasses.replace(config, trainer=trainer)


def _hide_progress(trainer: Trainer) -> None:
    """Remove the console, but keep what a run announces during set-up."""
    for hook in trainer.hooks:
        if isinstance(hook, MetricsHook) and hook.logger is not None:
            logger = hook.logger
            shown = [sink for sink in logger.sinks.values() if not isinstance(sink, ConsoleSink)]
            hook.logger = StatsLogger(shown, event_log=logger.event_log, run_dir=logger.run_dir)


def _lengthen(trainer: Trainer, epochs: int) -> None:
    """Let a run that was set up continue for so many epochs at least.

    Only now: its length decides how a run is set up.
    """
    assert trainer.components is not None
    buffer, config = trainer.components.experience, trainer.config
    rows = buffer.num_rows * trainer.ranks.size
    total = max(config.total_timesteps, epochs * buffer.horizon * rows)
    longer = dataclasses.replace(config, total_timesteps=total)
    trainer.training_config = dataclasses.replace(trainer.training_config, trainer=longer)


def _conditions_of(parts: TrainingComponents) -> str:
    plan, layout = parts.plan.describe(), parts.layout
    return plan if layout.is_plain else f"{plan}; {layout.describe()}"


class _Session:
    """Decides which epoch is watched in which way."""

    def __init__(self, trainer: Trainer, epochs: int, warmup: int) -> None:
        assert trainer.components is not None
        self.parts: TrainingComponents = trainer.components
        self.epochs, self.warmup = epochs, warmup
        self.timer, self.sampler = PhaseTimer(), StackSampler()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.parts.policy.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.tracer = torch.profiler.profile(activities=activities)
        self.profile: Profile | None = None
        self._first_step = 0
        self.timer.count(self.parts.phase_seconds)
        for collector in collectors_of(self.parts.collector):
            actor = getattr(collector, "actor", None)  # None: the shard is collected elsewhere
            acting = [name for name in ("act", "act_into") if hasattr(actor, name)]
            self.timer.watch(actor, acting, "inference")
        trainer.add_hook(EventEdge(FIRST - 1, self._on_event))
        for hook in self.timer.hooks():
            trainer.add_hook(hook)

    def _on_event(self, event: str) -> None:
        state = self.parts.state
        if event == "on_epoch_start":
            self._begin_epoch(state.epoch)
        elif event == "on_epoch_end" and state.epoch > self.warmup + 2 * self.epochs:
            self.tracer.stop()
            state.request_stop("the profile is complete")

    def _begin_epoch(self, done: int) -> None:
        # watching an environment that steps with its actor in C would make both fall back to Python
        if done == 1 and self.timer.was_called("inference"):
            for env in shards_of(self.parts.vecenv):
                self.timer.watch(env, ("send", "recv"), "environment")
        if done == self.warmup:
            self._first_step = self.parts.state.agent_step
            self.timer.begin()
        if done == self.warmup + self.epochs:
            self.timer.end()
            self.profile = self._profile()
            self.sampler.start()
        if done == self.warmup + 2 * self.epochs:
            self.sampler.stop()
            self.tracer.start()

    def _profile(self) -> Profile:
        return Profile(
            phases=self.timer.phases(),
            epochs=self.epochs,
            steps=self.parts.state.agent_step - self._first_step,
            conditions=_conditions_of(self.parts),
            peak_rss_mib=peak_rss_mib(),
            workers_rss_mib=children_rss_mib(),
            ahead_seconds=self.timer.ahead_seconds(),
        )

    def finish(self, folder: Path) -> Profile:
        """Write the files."""
        self.sampler.stop()
        if self.profile is None:
            raise ConfigError("training was stopped before the profile was complete")
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / "stacks.folded", self.sampler.folded())
        title = f"{self.epochs} epochs, {self.profile.conditions}"
        atomic_write_text(folder / "flame.svg", flame_graph(self.sampler.stacks, title))
        atomic_write(
            folder / "trace.json", lambda target: self.tracer.export_chrome_trace(str(target))
        )
        return self.profile
