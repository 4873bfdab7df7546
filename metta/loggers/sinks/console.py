"""Progress in the console: a table in place on a terminal, a line in place in a notebook, else lines."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from metta.loggers.number_text import shown_number
from metta.loggers.sink import MetricRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["ConsoleSink", "progress_line"]

_SECONDS_BETWEEN_LINES = 2.0
_SECONDS_BETWEEN_PICTURES = 1.0
_LOST = (OSError, SystemExit)
"""What a closed console raises; at a broken pipe rich would end the program."""
_SHOWN = {
    "overview/reward": "return",
    "losses/policy_loss": "policy loss",
    "losses/value_loss": "value loss",
    "losses/entropy": "entropy",
    "losses/approx_kl": "KL",
    "experience/explained_variance": "explained",
}
"""Metrics of the table, and their labels; a narrow terminal shows the first ones."""
_GAP, _MIN_BAR, _MAX_BAR = 2, 5, 30


class ConsoleSink:
    """Shows steps, steps per second, return, time left and the main losses.

    Lines come at most every two seconds, and once more for the last record. `total_timesteps` is the agent
    step at which the run ends; without it there is no bar and no time left. A console that can no longer
    be written to, such as a closed terminal, is ignored.
    """

    name = "console"

    def __init__(
        self, total_timesteps: int | None = None, *, console: "Console | None" = None
    ) -> None:
        self.total_timesteps = total_timesteps
        self._console = console
        self._live: Live | None = None
        self._last = MetricRow(0, 0)
        self._is_shown = True
        self._is_lost = False
        self._next_time = 0.0
        self._line = ""
        """The last one that was printed."""
        self._width = 0
        """Of the line that a notebook shows."""

    def write(self, row: MetricRow) -> None:
        """Show the record, unless another was shown just now."""
        # a record may lack what an earlier one had, as the last one with nothing but scores does
        known = {**self._last.metrics, **row.metrics}
        newest = row if row.agent_step >= self._last.agent_step else self._last  # it may come late
        self._last, self._is_shown = MetricRow(newest.agent_step, newest.epoch, known), False
        if time.monotonic() >= self._next_time:
            self._show(self._last)

    def _show(self, row: MetricRow) -> None:
        self._is_shown = True
        if self._is_lost:
            return
        try:
            self._print(row)
        except _LOST:
            self._is_lost = True
            self._stop_drawing()

    def _print(self, row: MetricRow) -> None:
        if self._console is None:
            from rich.console import Console

            self._console = Console()
        if self._console.is_jupyter:
            self._next_time = time.monotonic() + _SECONDS_BETWEEN_PICTURES
            self._rewrite(progress_line(row.metrics, row.agent_step, self.total_timesteps))
        elif self._console.is_terminal:
            self._next_time = time.monotonic() + _SECONDS_BETWEEN_PICTURES
            self._draw(self._console, row)
        else:
            self._next_time = time.monotonic() + _SECONDS_BETWEEN_LINES
            line = progress_line(row.metrics, row.agent_step, self.total_timesteps)
            if line == self._line:  # a record of scores alone changes nothing that is shown
                return
            self._line = line
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _rewrite(self, line: str) -> None:
        """One line in place: notebooks understand a carriage return, and widgets may be missing."""
        sys.stdout.write(f"\r{line:<{self._width}}")
        sys.stdout.flush()
        self._width = len(line)

    def _draw(self, console: "Console", row: MetricRow) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        self._live.update(_picture(row, self.total_timesteps, _width_of(console)), refresh=True)

    def flush(self) -> None:
        """Show the last record."""
        if not self._is_shown:
            self._show(self._last)

    def close(self) -> None:
        """Show the last record and leave the cursor below it."""
        self.flush()
        self._stop_drawing()
        self._last, self._next_time, self._line = MetricRow(0, 0), 0.0, ""

    def _stop_drawing(self) -> None:
        if self._width:
            self._width = 0
            sys.stdout.write("\n")
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(*_LOST):
                live.stop()


def progress_line(
    metrics: Mapping[str, float], agent_step: int, total_timesteps: int | None = None
) -> str:
    """One line: steps, steps per second, return, and the time left if the end is known."""
    total = "" if total_timesteps is None else f" / {total_timesteps:,}"
    speed = _speed(metrics)
    line = f"{agent_step:>10,}{total} steps  {speed:>7} steps/s"
    line += f"  return {_number(metrics, 'overview/reward'):>7}"
    if total_timesteps is None:
        return line
    return f"{line}  ETA {_left(metrics, agent_step, total_timesteps)}"


def _width_of(console: "Console") -> int:
    """Columns that a line may fill: the last one stays empty, as some terminals wrap a full line.

    The terminal itself is asked: COLUMNS, which rich believes, may be that of another one.
    """
    width = console.width
    with contextlib.suppress(OSError, ValueError, AttributeError):
        width = min(width, os.get_terminal_size(console.file.fileno()).columns or width)
    return max(1, width - 1)


def _picture(row: MetricRow, total: int | None, width: int) -> "RenderableType":
    """Three lines of at most `width` columns, however long the numbers are."""
    from rich.console import Group
    from rich.text import Text

    columns = [(label, _number(row.metrics, key)) for key, label in _SHOWN.items()]
    sizes = [max(map(len, column)) for column in columns]
    lines = ("", "")
    for column, size in zip(columns, sizes, strict=True):
        gap = " " * _GAP if lines[0] else ""
        longer = [line + gap + cell.rjust(size) for line, cell in zip(lines, column, strict=True)]
        if lines[0] and len(longer[0]) > width:
            break
        lines = longer[0], longer[1]
    labels, numbers = (line[:width] for line in lines)
    return Group(
        _head(row, total, width),
        Text(labels, style="dim", no_wrap=True),
        Text(numbers, no_wrap=True),
    )


def _head(row: MetricRow, total: int | None, width: int) -> "RenderableType":
    """Steps, a bar, speed and time left, as far as there is room: steps come first, the bar last."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    metrics, step = row.metrics, row.agent_step
    words = [f"{step:,}" + ("" if total is None else f" / {total:,}") + " steps"]
    words.append(f"{_speed(metrics)} steps/s")
    if total is not None:
        words.append(f"ETA {_left(metrics, step, total)}")
    while len(words) > 1 and len((" " * _GAP).join(words)) > width:
        words.pop()
    cells: list[RenderableType] = [words[0][:width], *words[1:]]
    room = min(width - len((" " * _GAP).join(words)) - _GAP, _MAX_BAR)
    if total is not None and room >= _MIN_BAR:
        cells.insert(1, ProgressBar(total=max(total, 1), completed=min(step, total), width=room))
    head = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for _ in cells:
        head.add_column(no_wrap=True)
    head.add_row(*cells)
    return head


def _number(metrics: Mapping[str, float], key: str) -> str:
    value = metrics.get(key, math.nan)
    return shown_number(value) if math.isfinite(value) else "-"


def _speed(metrics: Mapping[str, float]) -> str:
    speed = metrics.get("overview/sps", math.nan)
    return f"{speed:,.0f}" if math.isfinite(speed) else "-"


def _left(metrics: Mapping[str, float], agent_step: int, total: int) -> str:
    speed = metrics.get("overview/sps", math.nan)
    if not math.isfinite(speed) or speed <= 0:
        return "-"
    seconds = round(max(0, total - agent_step) / speed)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
