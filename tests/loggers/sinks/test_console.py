import errno
import io
import math
import sys
from pathlib import Path

import pytest
from rich.console import Console

from metta.loggers import ConsoleSink, MetricRow
from metta.loggers.sinks import console as console_module
from metta.loggers.sinks.console import progress_line

METRICS = {"overview/sps": 2000.0, "overview/reward": 187.25, "losses/value_loss": 23.5}


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(console_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def make(*, terminal: bool, total: int | None = 10_000) -> tuple[ConsoleSink, io.StringIO]:
    out = io.StringIO()
    return ConsoleSink(total, console=Console(file=out, force_terminal=terminal, width=110)), out


def test_a_line_tells_how_far_it_is_when_there_is_no_terminal() -> None:
    sink, out = make(terminal=False)
    sink.write(MetricRow(4000, 4, METRICS))
    sink.close()
    line = out.getvalue().rstrip("\n")
    assert "\n" not in line
    for part in ("4,000 / 10,000 steps", "2,000 steps/s", "return   187.2", "ETA 0:00:03"):
        assert part in line


def test_lines_are_rare_when_rows_are_frequent(clock: Clock) -> None:
    sink, out = make(terminal=False)
    for epoch in range(1, 42):  # a row every 0.1 s for 4 s
        sink.write(MetricRow(epoch * 10, epoch, METRICS))
        clock.now += 0.1
    sink.close()
    assert [int(line.split()[0]) for line in out.getvalue().splitlines()] == [10, 210, 410]


@pytest.mark.usefixtures("clock")
def test_the_last_row_is_shown_once_when_a_sink_is_closed() -> None:
    sink, out = make(terminal=False)
    for step in (1, 2, 3):
        sink.write(MetricRow(step, step, METRICS))
    sink.close()
    sink.close()
    assert [int(line.split()[0]) for line in out.getvalue().splitlines()] == [1, 3]


def test_no_line_is_repeated_when_the_last_row_has_nothing_but_scores(clock: Clock) -> None:
    sink, out = make(terminal=False)
    sink.write(MetricRow(10, 1, METRICS))
    clock.now += 5.0
    sink.write(MetricRow(10, 1, {"eval_training/score": 3.0}))
    sink.close()
    assert len(out.getvalue().splitlines()) == 1


def test_a_dash_stands_for_the_return_when_no_episode_has_ended() -> None:
    line = progress_line({"overview/sps": math.nan, "overview/reward": math.nan}, 5, 10)
    assert "return       -" in line
    assert line.endswith("ETA -")
    assert "nan" not in line


def test_no_end_is_claimed_when_the_total_is_unknown() -> None:
    assert "ETA" not in progress_line(METRICS, 5)
    sink, out = make(terminal=True, total=None)
    sink.write(MetricRow(5, 1, METRICS))
    sink.close()
    assert "ETA" not in out.getvalue()


def test_a_table_shows_losses_when_there_is_a_terminal() -> None:
    sink, out = make(terminal=True)
    sink.write(MetricRow(4000, 4, METRICS))
    sink.close()
    shown = out.getvalue()
    for part in ("4,000 / 10,000 steps", "2,000 steps/s", "ETA 0:00:03", "━", "value loss", "23.5"):
        assert part in shown
    assert "nan" not in shown


def test_the_table_stays_in_place_when_rows_follow(clock: Clock) -> None:
    sink, out = make(terminal=True)
    sink.write(MetricRow(4000, 4, METRICS))
    first = out.getvalue()
    sink.write(MetricRow(4500, 5, METRICS))
    assert out.getvalue() == first  # too soon
    clock.now += 5.0
    sink.write(MetricRow(5000, 6, METRICS))
    redrawn = out.getvalue()[len(first) :]
    assert "5,000 / 10,000 steps" in redrawn
    assert "\x1b[1A" in redrawn  # the cursor goes up first
    sink.close()
    assert out.getvalue().endswith("\x1b[?25h")  # and is visible in the end


def test_known_values_stay_when_the_last_row_lacks_them() -> None:
    sink, out = make(terminal=False)
    sink.write(MetricRow(1, 1, METRICS))
    sink.write(MetricRow(2, 2, {"eval_task/score": 3.0}))
    sink.close()
    assert "return   187.2" in out.getvalue().splitlines()[-1]


class GoneTerminal(io.StringIO):
    """Nobody is there any more from the second line on."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        if self.getvalue().count("\n") > 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "no terminal"), BrokenPipeError()])
def test_nothing_is_raised_when_the_console_is_gone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, terminal: bool
) -> None:
    with (tmp_path / "stdout").open("w") as stdout:  # rich replaces what is behind it
        monkeypatch.setattr(sys, "stdout", stdout)
        out = GoneTerminal(error)
        sink = ConsoleSink(10, console=Console(file=out, force_terminal=terminal, width=110))
        for step in range(4):
            sink.write(MetricRow(step, step, METRICS))
            clock.now += 10
        sink.flush()
        sink.close()
        assert sys.stdout is stdout
    assert out.getvalue().count("steps/s") == 1
