import io

import pytest
from rich.console import Console

from metta.cli import progress as progress_module
from metta.cli.progress import Progress


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", made)
    return made


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=120)


def test_a_line_gives_the_known_numbers_when_there_is_no_terminal(clock: Clock) -> None:
    console = plain_console()
    with Progress(1000, console) as progress:
        clock.now += 4.0
        progress.update(200, {"episode_return": 12.34})
    # 200 steps in 4 s are 50 a second; 800 more take 16 s
    assert [line.split() for line in shown(console)] == [
        ["200", "/", "1,000", "steps", "50", "steps/s", "return", "12.3", "ETA", "16", "s"]
    ]


def test_lines_come_every_two_seconds_when_updates_are_frequent(clock: Clock) -> None:
    console = plain_console()
    with Progress(10_000, console) as progress:
        for step in range(1, 61):
            clock.now += 0.1
            progress.update(step, {})
    assert len(shown(console)) in (2, 3)


def test_the_last_line_is_always_shown_when_the_run_ends(clock: Clock) -> None:
    console = plain_console()
    with Progress(100, console) as progress:
        clock.now += 0.1
        progress.update(50, {})
        progress.update(128, {"episode_return": 1.0})
    (line,) = shown(console)
    assert "128 / 100 steps" in line
    assert "ETA 0 s" in line


def test_the_return_is_nan_when_no_episode_has_ended(clock: Clock) -> None:
    console = plain_console()
    with Progress(10, console) as progress:
        clock.now += 1.0
        progress.update(10, {})
    assert "return     nan" in shown(console)[0]


def test_nothing_breaks_when_no_step_was_made_yet(clock: Clock) -> None:
    console = plain_console()
    with Progress(10, console) as progress:
        clock.now += 5.0
        progress.update(0, {})
    assert "ETA -" in shown(console)[0]


def test_a_bar_moves_when_there_is_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(1000, console) as progress:
        progress.update(500, {"episode_return": 7.5})
        progress.update(1000, {"episode_return": 9.5})
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1,000 steps" in text
    assert "return 9.5" in text
    assert "\x1b[" in text
    assert "━" in text
    assert " / 1,000 steps" not in text


def test_the_cursor_returns_when_training_fails() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(ValueError, match="broken"), Progress(10, console):
        raise ValueError("broken")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rstrip("\n").endswith("\x1b[?25h")


def test_the_output_is_that_of_the_process_when_no_console_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress(10) as progress:
        progress.update(10, {"episode_return": 2.0})
    assert "10 / 10 steps" in capsys.readouterr().out
