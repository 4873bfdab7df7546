import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.speed import machine_use as module
from benchmarks.speed.machine_use import ProcessTree, machine_use, parse_machine_use, require_proc
from metta.errors import ConfigError

RECORDED = """cpu  8000 200 1500 90000 300 40 60 700 500 20
cpu0 4000 100 750 45000 150 20 30 350 250 10
cpu1 4000 100 750 45000 150 20 30 350 250 10
intr 1234
"""

PARENT = """
import subprocess, sys, time
child = "data = bytearray(30 << 20); print(flush=True); import time; time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
{end}
"""


def parent(end: str) -> "subprocess.Popen[str]":
    code = PARENT.format(end=end)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until_over(pid: int) -> None:
    while is_alive(pid):
        time.sleep(0.01)


def test_busy_and_stolen_seconds_are_told_apart_when_a_recorded_text_is_read() -> None:
    found = parse_machine_use(RECORDED, ticks=100)
    # user, nice, system, interrupts, soft interrupts: 80 + 2 + 15 + 0.4 + 0.6; guests are in user already
    assert found.busy == pytest.approx(98.0)
    assert found.stolen == pytest.approx(7.0)


def test_busy_seconds_grow_when_this_process_works() -> None:
    before, until = machine_use(), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert machine_use().busy > before.busy


def test_children_count_when_a_process_has_some() -> None:
    process = parent("time.sleep(60)")
    assert process.stdout is not None
    child, tree = int(process.stdout.readline()), ProcessTree(process.pid)
    try:
        seconds, resident = tree.look()
        assert seconds > 0
        assert resident > 30 << 20
        assert tree.lives()
    finally:
        tree.kill()
        process.communicate()
    wait_until_over(child)
    assert not tree.lives()
    assert tree.look()[0] >= seconds  # what was used is not forgotten
    assert tree.look()[1] == 0


def test_a_process_stays_in_the_tree_when_its_parent_has_ended() -> None:
    process = parent("time.sleep(0.3)")
    assert process.stdout is not None
    child, tree = int(process.stdout.readline()), ProcessTree(process.pid)
    tree.look()
    process.communicate()
    assert not tree.lives()
    assert is_alive(child)
    assert tree.look()[1] > 30 << 20
    tree.kill()
    wait_until_over(child)


def test_nothing_is_measured_when_there_is_no_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_proc()
    monkeypatch.setattr(module, "_PROC", tmp_path)
    with pytest.raises(ConfigError, match="only Linux has"):
        require_proc()
