"""Progress on real pseudo-terminals: what stands on the screen after many records."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable, Iterator

import pyte
import pytest
from rich.console import Console

from metta.loggers import ConsoleSink, MetricRow
from metta.loggers.sinks import console as console_module

LONG = {"overview/sps": 123456.0, "overview/reward": -1234.5678, "losses/policy_loss": -0.0123,
        "losses/value_loss": 1234567.0, "losses/entropy": 1.25, "losses/approx_kl": 0.0312,
        "experience/explained_variance": 0.5}  # fmt: skip
SHORT = {"overview/sps": 5.0, "overview/reward": 1.0}
TOTAL = 100_000_000


class Terminal:
    """A pseudo-terminal, and its screen."""

    def __init__(self, columns: int) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(columns, 24)
        self.resize(columns)
        self._stream = pyte.ByteStream(self.screen)
        self.file = os.fdopen(self.slave, "w")

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.screen.resize(columns=columns)

    def lines(self) -> list[str]:
        """What stands on the screen now."""
        self.file.flush()
        os.set_blocking(self.master, False)
        try:
            while content := os.read(self.master, 65536):
                self._stream.feed(content)
        except BlockingIOError:
            pass
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> None:
        self.file.close()
        os.close(self.master)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(console_module.time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def make_terminal() -> Iterator[Callable[[int], Terminal]]:
    with contextlib.ExitStack() as stack:
        yield lambda columns: stack.enter_context(contextlib.closing(Terminal(columns)))


def sink_on(terminal: Terminal, total: int = TOTAL) -> ConsoleSink:
    return ConsoleSink(total, console=Console(file=terminal.file, force_terminal=True))


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("believed", [None, 100])
def test_three_lines_stay_on_the_screen_when_a_terminal_is_narrow(
    make_terminal: Callable[[int], Terminal],
    now: list[float],
    columns: int,
    believed: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = make_terminal(columns)
    monkeypatch.delenv("COLUMNS", raising=False)
    if believed is not None:  # a COLUMNS of another terminal
        monkeypatch.setenv("COLUMNS", str(believed))
    sink = sink_on(terminal)
    for epoch in range(1, 30):
        sink.write(MetricRow(epoch * TOTAL // 29, epoch, LONG if epoch % 2 else SHORT))
        now[0] += 10
        shown = terminal.lines()
        assert len(shown) == 3, shown
        assert max(map(len, shown)) < terminal.screen.columns
    sink.close()
    assert len(terminal.lines()) == 3
    assert terminal.lines()[1].split()[0] == "return"


def test_steps_return_and_whole_columns_show_when_there_are_60_columns(
    make_terminal: Callable[[int], Terminal], now: list[float]
) -> None:
    terminal = make_terminal(60)
    sink = sink_on(terminal, 400_000)
    sink.write(MetricRow(204_800, 25, LONG))
    now[0] += 10
    steps, labels, numbers = terminal.lines()
    assert steps.startswith("204,800 / 400,000 steps  ")
    assert steps.endswith("ETA 0:00:02")
    assert labels.split("  ")[0].strip() == "return"
    assert labels.split()[-1] == "explained"  # all columns fit
    assert numbers.split()[0] == "-1,235"
    assert "0.0312" in numbers
    sink.close()


def test_three_lines_are_left_when_a_terminal_is_made_narrower(
    make_terminal: Callable[[int], Terminal], now: list[float]
) -> None:
    terminal = make_terminal(100)
    sink = sink_on(terminal)
    for epoch in range(1, 10):
        terminal.lines()
        if epoch == 5:
            terminal.resize(50)
        sink.write(MetricRow(epoch, epoch, LONG))
        now[0] += 10
    sink.close()
    assert len(terminal.lines()) == 3
    assert terminal.lines()[-3].startswith("9 / 100,000,000 steps")
