"""A terminal that is closed, a reader that goes away: training continues, or saves all that it learned."""

import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from faults.zygote import Child, Zygote
from metta.cli.lost_console import tolerate_lost_console
from metta.cli.main import main
from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events
from metta.store.checkpoints.files import read_newest_checkpoint

ROOT = Path(__file__).parents[2]
ENDLESS = 10**9
TINY = ["num_envs=2", "horizon=16", "update_epochs=1", "hidden_size=8", "eval_episodes=0",
        "final_replay=false"]  # fmt: skip


def start(zygote: Zygote, run: Path, steps: int, **how: str | bool) -> Child:
    return zygote.start("tests.cli.console_children:train", run=str(run), steps=steps, **how)


def assert_whole(run: Path, *, outcome: str, steps: int | None = None) -> None:
    """The run's files are complete, and agree about how it ended."""
    rows = metric_rows(run / "events.jsonl")
    last = rows[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint = read_newest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert (checkpoint.epoch, checkpoint.agent_step) == (last.epoch, last.agent_step)
    assert steps is None or last.agent_step == steps
    ends = [e.payload["outcome"] for e in read_events(run / "events.jsonl") if e.kind == "run_end"]
    assert ends == [outcome]
    assert len((run / "metrics.csv").read_text().splitlines()) == len(rows) + 1
    assert not list(run.glob("undelivered*"))


def wait_for_rows(run: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (run / "events.jsonl").exists() and len(metric_rows(run / "events.jsonl")) >= number:
            return
        time.sleep(0.01)
    raise TimeoutError(f"{run} has not logged {number} rows")


def test_training_ends_well_when_no_stream_is_open(zygote: Zygote, tmp_path: Path) -> None:
    env = "tests.cli.console_children:Talking-v0"
    assert start(zygote, tmp_path / "run", 320, env=env, console="closed").wait() == 0
    assert_whole(tmp_path / "run", outcome="done", steps=320)
    # nothing that was printed has found its way into a file of the run
    assert (tmp_path / "run" / "config.yaml").read_text().startswith("experiment_name")


def test_training_ends_well_when_the_reader_has_seen_enough(tmp_path: Path) -> None:
    words = ["CartPole-v1", *TINY, "total_timesteps=320", "--run", "run", "--output", str(tmp_path)]
    command = shlex.join([sys.executable, "-m", "metta.cli.main", "train", *words])
    # a process of its own: Python writes what is left when it ends, too
    shell = ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"]
    assert subprocess.run(shell, cwd=ROOT, check=False, capture_output=True).returncode == 0
    assert_whole(tmp_path / "run", outcome="done", steps=320)


def test_training_ends_well_when_the_reader_goes_and_everybody_talks(
    zygote: Zygote, tmp_path: Path
) -> None:
    console, run = tmp_path / "console", tmp_path / "run"
    os.mkfifo(console)
    env = "tests.cli.console_children:Talking-v0"
    child = start(zygote, run, 960, env=env, console=str(console))
    with console.open() as reader:
        heard = [reader.readline() for _ in range(20)]
    assert any("a step is taken" in line for line in heard)
    assert child.wait() == 0
    assert_whole(run, outcome="done", steps=960)


def test_all_is_saved_when_the_terminal_is_closed(zygote: Zygote, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = start(zygote, run, ENDLESS)
    wait_for_rows(run, 2)
    child.kill(signal.SIGHUP)
    assert child.wait() == 129
    assert_whole(run, outcome="stopped")
    assert (
        "(SIGHUP was received); continue with: metta resume" in (tmp_path / "run-1.txt").read_text()
    )


def test_training_goes_on_when_the_end_of_the_terminal_is_ignored(
    zygote: Zygote, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = start(zygote, run, ENDLESS, nohup=True)
    wait_for_rows(run, 2)
    child.kill(signal.SIGHUP)
    wait_for_rows(run, len(metric_rows(run / "events.jsonl")) + 5)
    child.kill(signal.SIGTERM)
    assert child.wait() == 143
    assert_whole(run, outcome="stopped")


def test_the_exit_code_is_129_when_the_terminal_is_closed_before_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed(*_: object, **__: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        raise AssertionError("nothing happened")

    monkeypatch.setattr("metta.cli.training.train", closed)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert main(["train", "CartPole-v1", "--output", str(tmp_path)]) == 129
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with pytest.raises(AssertionError, match="nothing happened"):
            main(["train", "CartPole-v1", "--output", str(tmp_path)])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_printing_falls_silent_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with tolerate_lost_console():
            print("heard", flush=True)
            assert os.read(reading, 100) == b"heard\n"
            os.close(reading)
            for _ in range(3):
                print("lost", flush=True)
            print("x" * 100_000)
            assert sys.stdout.write("four") == 4
        assert sys.stdout is stream
        assert str(Path(f"/proc/self/fd/{writing}").readlink()) == os.devnull


def test_printing_goes_nowhere_when_there_is_no_stream(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with tolerate_lost_console():
        print("nobody hears this", flush=True)
    assert sys.stdout is None
    assert capfd.readouterr().out == ""
