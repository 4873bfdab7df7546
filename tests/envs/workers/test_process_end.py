import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from metta.envs.workers.process_end import ProcessEnd
from tests.envs.processes import all_gone


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[str]"]:
    """A process that leads a group, and has a child in it."""
    script = (
        "import os, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        yield process
        process.kill()


def child_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_the_whole_group_ends_when_a_stopped_process_is_killed(
    sleeper: "subprocess.Popen[str]",
) -> None:
    child = child_of(sleeper)
    end = ProcessEnd(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert not end.within(0.05)
    end.kill()
    assert end.within(2.0)
    assert all_gone([child, sleeper.pid], 2.0)
    end.close()
    end.close()


def test_the_end_is_noticed_at_once_when_it_comes_while_waiting(
    sleeper: "subprocess.Popen[str]",
) -> None:
    child_of(sleeper)
    end = ProcessEnd(sleeper.pid)
    sleeper.kill()
    begin = time.monotonic()
    assert end.within(30.0)
    assert time.monotonic() - begin < 5.0
    end.close()


def test_children_are_killed_when_the_process_has_ended_already(
    sleeper: "subprocess.Popen[str]",
) -> None:
    child = child_of(sleeper)
    sleeper.kill()
    sleeper.wait()
    ended, writer = os.pipe()
    os.close(writer)
    end = ProcessEnd(sleeper.pid, otherwise=ended)
    assert end.within(0)
    end.kill()
    assert all_gone([child], 2.0)
    end.close()
    os.close(ended)


def test_the_other_descriptor_is_waited_for_when_the_system_has_no_process_descriptors(
    sleeper: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    child = child_of(sleeper)
    monkeypatch.delattr(os, "pidfd_open")
    reader, writer = os.pipe()
    end = ProcessEnd(sleeper.pid, otherwise=reader)
    assert end.descriptor == reader
    assert not end.within(0)
    end.kill()
    assert all_gone([child, sleeper.pid], 2.0)
    os.close(writer)
    assert end.within(0)
    end.close()
    os.close(reader)


def test_the_process_is_looked_up_when_there_is_no_descriptor_at_all(
    sleeper: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    child = child_of(sleeper)
    monkeypatch.delattr(os, "pidfd_open")
    end = ProcessEnd(sleeper.pid)
    assert not end.within(0.05)
    end.kill()
    sleeper.wait()
    assert end.within(2.0)
    assert all_gone([child], 2.0)
