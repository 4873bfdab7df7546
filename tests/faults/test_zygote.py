"""Processes that start quickly, and can be killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.zygote import Zygote

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(
        ["tests.faults.zygote_children", "tests.faults.zygote_children:prepare"], cwd=ROOT
    ) as zygote:
        yield zygote


def test_a_function_runs_in_a_process_of_its_own_when_it_is_started(
    zygote: Zygote, tmp_path: Path
) -> None:
    target = tmp_path / "said"
    child = zygote.start("tests.faults.zygote_children:write", path=str(target), text="hello")
    assert child.wait() == 0
    assert target.read_text() == f"hello from {child.pid}, prepared"
    assert child.pid != os.getpid()


def test_the_exit_code_is_known_when_a_child_ends(zygote: Zygote) -> None:
    assert zygote.start("tests.faults.zygote_children:leave", code=7).wait() == 7
    assert zygote.start("tests.faults.zygote_children:fail").wait() == 1
    assert zygote.start("tests.faults.zygote_children:interrupt").wait() == -signal.SIGINT
    assert zygote.start("tests.faults.zygote_children:nothing_of_that_name").wait() == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_signal_is_the_exit_code_when_a_child_is_killed(zygote: Zygote, number: int) -> None:
    child = zygote.start("tests.faults.zygote_children:sleep")
    time.sleep(0.05)
    with pytest.raises(TimeoutError, match="continues after"):
        child.wait(0.05)
    child.kill(number)
    assert child.wait() == -number
    child.kill()  # nothing is left to be killed
    assert child.wait() == -number


def test_children_end_with_the_zygote_when_it_is_closed() -> None:
    with Zygote(["tests.faults.zygote_children"], cwd=ROOT) as zygote:
        child = zygote.start("tests.faults.zygote_children:sleep")
        assert Path(f"/proc/{child.pid}").exists()
    assert not Path(f"/proc/{child.pid}").exists()


def test_it_is_said_when_the_zygote_cannot_begin() -> None:
    with pytest.raises(RuntimeError, match="zygote ended with code 1"):
        Zygote(["no_such_module"])
