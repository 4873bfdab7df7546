"""Live progress: one moving line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

__all__ = ["Progress"]

_SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """Steps, steps per second, return and time left.

    with Progress(total_steps) as progress:
        progress.update(agent_step, metrics)
    """

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self.total_steps = total_steps
        self.console = console or Console()
        self._started = self._last_line = time.monotonic()
        self._bar = RichProgress(
            TextColumn("{task.fields[steps]} steps"),
            BarColumn(),
            TextColumn("{task.fields[speed]} steps/s  return {task.fields[reward]}  ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total_steps, steps="0", speed="-", reward="-")

    def update(self, agent_step: int, metrics: Mapping[str, float]) -> None:
        """Show where training is; `metrics` should hold ``episode_return``."""
        now = time.monotonic()
        speed = agent_step / max(now - self._started, 1e-9)
        reward = f"{metrics.get('episode_return', float('nan')):.1f}"
        done = min(agent_step, self.total_steps)
        self._bar.update(
            self._task,
            completed=done,
            steps=f"{agent_step:,}",
            speed=f"{speed:,.0f}",
            reward=reward,
        )
        finished = agent_step >= self.total_steps
        if self.console.is_terminal or (
            now - self._last_line < _SECONDS_BETWEEN_LINES and not finished
        ):
            return
        self._last_line = now
        left = f"{max(0.0, (self.total_steps - agent_step) / speed):.0f} s" if speed else "-"
        self.console.print(
            f"{agent_step:>10,} / {self.total_steps:,} steps  {speed:>7,.0f} steps/s  "
            f"return {reward:>7}  ETA {left}",
            highlight=False,
        )

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
