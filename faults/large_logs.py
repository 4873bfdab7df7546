"""Runs with event logs as large as those of a year, and folders with very many runs.

`count` is the size of the log in MB and the number of runs. Judged is how much memory a command takes and
how many bytes it reads beyond the same command on a small run; how long it takes is noted only.
"""

import csv
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from faults.training import STEPS_PER_EPOCH, trainer_of
from faults.trial import OK, Trial
from metta.loggers.events.history import stream_rows
from metta.loggers.events.lines import event_line, link_of, parse_event
from metta.loggers.events.log import LogMark
from metta.store.checkpoints.files import read_newest_checkpoint, write_checkpoint
from metta.store.policies.file import freeze_policy

MB = 10**6
MAX_RUNS_MB = 300.0
"""Memory of `metta runs` and `metta runs show`, of any number and size."""
MAX_MORE_MEMORY_MB = 100.0
MAX_MORE_READ_MB = 150.0
"""Beyond what the same command reads of a small run: the tail of a log, a few times."""
_WAIT_SECONDS = 300.0


class Cost(NamedTuple):
    """What a command took."""

    code: int
    seconds: float
    peak_mb: float
    read_mb: float
    text: str


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Each command once, on a small run and on a large one.

    A resume to the end draws the learning curve, for which all of the log is read once more; one that a
    signal stops does not.
    """
    small, large = folder / "small" / "run", folder / "large" / "run"
    make_run(small, 0)
    epoch = make_run(large, count * MB)
    log_mb = (large / "events.jsonl").stat().st_size / MB
    for name, judge in (("runs", _judge_list), ("runs show", _judge_memory)):
        costs = [measure([*name.split(), *_shown(name, run)]) for run in (small, large)]
        yield _trial(f"metta {name}", seed, judge, costs, log_mb)
    costs = [_resumed(small, 4, 0), _resumed(large, 4, epoch)]
    yield _trial("metta resume", seed, _judge_memory, costs, log_mb)
    (large / "metrics.csv").unlink()
    costs = [_resumed(small, 8, 0), _resumed(large, 8, epoch)]
    yield _trial("metta resume, without a table", seed, _judge_memory, costs, log_mb)
    yield _table_trial(large, seed)
    costs = [_stopped(small, 0), _stopped(large, epoch)]
    yield _trial("SIGTERM", seed, _judge_stopped, costs, log_mb)
    shutil.rmtree(large.parent)
    for number in range(count):
        shutil.copytree(small, folder / "many" / f"run-{number}", ignore=_without_checkpoints)
    costs = [measure(["runs", "--output", str(folder / name)]) for name in ("small", "many")]
    yield _trial(f"metta runs, {count} of them", seed, _judge_many, costs, log_mb)


def _shown(name: str, run: Path) -> list[str]:
    return [str(run)] if name == "runs show" else ["--output", str(run.parent)]


def _without_checkpoints(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("checkpoints", "metrics.csv")]


Judge = Callable[[Cost, Cost, float], str]


def _trial(point: str, seed: int, judge: Judge, costs: list[Cost], log_mb: float) -> Trial:
    small, large = costs
    detail: dict[str, Any] = {
        "log_mb": round(log_mb),
        "seconds": [round(cost.seconds, 2) for cost in costs],
        "peak_mb": [round(cost.peak_mb) for cost in costs],
        "read_mb": [round(cost.read_mb, 1) for cost in costs],
    }
    bad = [cost for cost in costs if cost.code not in (0, 128 + signal.SIGTERM)]
    outcome = f"it ended with {bad[0].code}" if bad else judge(small, large, log_mb)
    if outcome != OK:
        detail["said"] = large.text[-500:]
    return Trial("large_logs", seed, point, outcome, detail=detail)


def _judge_memory(small: Cost, large: Cost, _: float) -> str:
    more = large.peak_mb - small.peak_mb
    return OK if more <= MAX_MORE_MEMORY_MB else f"it took {more:.0f} MB more memory"


def _judge_list(small: Cost, large: Cost, log_mb: float) -> str:
    if large.peak_mb > MAX_RUNS_MB:
        return f"it took {large.peak_mb:.0f} MB of memory"
    return _judge_resume(small, large, log_mb)


def _judge_resume(small: Cost, large: Cost, log_mb: float) -> str:
    more = large.read_mb - small.read_mb
    if more > MAX_MORE_READ_MB:
        return f"it read {more:.0f} MB more, of a log of {log_mb:.0f} MB"
    return _judge_memory(small, large, log_mb)


def _judge_stopped(small: Cost, large: Cost, log_mb: float) -> str:
    if large.code != 128 + signal.SIGTERM:
        return f"it ended with {large.code}"
    return _judge_resume(small, large, log_mb)


def _judge_many(small: Cost, large: Cost, _: float) -> str:
    if large.peak_mb > MAX_RUNS_MB:
        return f"it took {large.peak_mb:.0f} MB of memory"
    lines = len(large.text.splitlines())
    return OK if lines > len(small.text.splitlines()) else f"it listed {lines} lines"


def make_run(folder: Path, log_bytes: int) -> int:
    """A finished run whose log has about so many bytes; returns how many epochs were put before it."""
    with trainer_of("mlp", folder) as trainer:
        trainer.train()
        frozen = freeze_policy(trainer.policy)
    if not log_bytes:
        return 0
    rows = list(stream_rows(folder / "events.jsonl"))
    more, mark = fill_log(folder, rows[-1].metrics, log_bytes, rows[-1].epoch)
    checkpoint = read_newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    steps = more * STEPS_PER_EPOCH
    state = checkpoint.snapshot["trainer_state"]["state"]
    state["epoch"], state["agent_step"] = checkpoint.epoch + more, checkpoint.agent_step + steps
    checkpoint.snapshot["stats_tracker"]["state"]["stats_epoch_start"] += more
    about = {**checkpoint.metadata, "epoch": state["epoch"], "agent_step": state["agent_step"]}
    shutil.rmtree(folder / "checkpoints")
    target = folder / "checkpoints"
    write_checkpoint(target, checkpoint.snapshot, frozen, about, log_mark=mark.to_dict())
    return more


def fill_log(folder: Path, metrics: Any, log_bytes: int, first: int) -> tuple[int, LogMark]:
    """Append rows like these to the log and the table; returns how many, and how far the log has got."""
    file = folder / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    link, sequence, size = link_of(lines[-1]), len(lines), sum(map(len, lines))
    run = parse_event(lines[0]).run
    number = 0
    with file.open("ab") as log, (folder / "metrics.csv").open("ab") as table:
        cells = _cells(folder, metrics)
        while size < log_bytes:
            number += 1
            epoch = first + number
            step = epoch * STEPS_PER_EPOCH
            payload = {"agent_step": step, "epoch": epoch, "metrics": metrics}
            event = {"run": run, "sequence": sequence + number, "time": time.time()}
            line = event_line({**event, "kind": "metrics", "payload": payload}, link)
            log.write(line)
            table.write(b"%d,%d,%b" % (step, epoch, cells))
            link, size = link_of(line), size + len(line)
    return number, LogMark(run, sequence + number, size, link)


def _cells(folder: Path, metrics: Any) -> bytes:
    """The cells of a row of the table after the first two."""
    with (folder / "metrics.csv").open(newline="") as lines:
        columns = next(csv.reader(lines))[2:]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([metrics.get(name, "") for name in columns])
    return text.getvalue().encode()


def _resumed(run: Path, epochs: int, before: int) -> Cost:
    last = 12 + before + epochs
    return measure(["resume", str(run), f"total_timesteps={last * STEPS_PER_EPOCH}"])


def _stopped(run: Path, before: int) -> Cost:
    """A run that is resumed, and stopped by a signal when it has logged a little; timed from the signal."""
    words = ["resume", str(run), f"total_timesteps={(before + 10_000_000) * STEPS_PER_EPOCH}"]
    log = run / "events.jsonl"
    size = log.stat().st_size

    def stop(process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while log.stat().st_size < size + 50_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)

    return measure(words, stop)


def measure(
    words: list[str], meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None
) -> Cost:
    """Run the command; its memory and its reads are those that the system counted."""
    command = [sys.executable, "-m", "metta.cli.main", *words]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        begin = time.monotonic()
        if meanwhile is not None:
            meanwhile(process)
            begin = time.monotonic()
        peak = _peak_until_end(process.pid)
        seconds = time.monotonic() - begin
        counted = Path(f"/proc/{process.pid}/io").read_text().split()
        code = process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return Cost(code, seconds, peak, int(counted[counted.index("rchar:") + 1]) / MB, text)


def _peak_until_end(pid: int) -> float:
    """The most memory in MB that a process had; `wait` would count its parent's too."""
    peak, status = 0, Path(f"/proc/{pid}/status")
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.01)
    return peak * 1024 / MB


def _table_trial(run: Path, seed: int) -> Trial:
    """The table that was removed has every row again."""
    expected = sum(1 for _ in stream_rows(run / "events.jsonl"))
    with (run / "metrics.csv").open("rb") as lines:
        found = sum(1 for _ in lines) - 1
    outcome = OK if found == expected else f"the table has {found} rows of {expected}"
    return Trial("large_logs", seed, "rows of the table", outcome)
