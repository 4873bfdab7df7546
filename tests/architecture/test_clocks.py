"""The wall clock may jump, so it only says when something happened, never how long it took."""

import ast
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.training import EPOCHS, trainer_of
from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "metta").rglob("*.py"))

WALL_CLOCKS = {
    "time.time", "time.time_ns", "time.clock_gettime", "time.clock_gettime_ns", "time.ctime",
    "time.asctime", "time.gmtime", "time.localtime", "time.strftime", "datetime.datetime.now",
    "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
}  # fmt: skip
"""Functions that tell the time of day; however they are imported."""

REASONS = {
    ("metta/runs/summary.py", "time.time"): "is compared with the time of another computer's file",
    ("metta/cli/training.py", "time.strftime"): "names a run",
    ("metta/cli/sweeping.py", "time.strftime"): "names a sweep",
    ("metta/sweeps/driver.py", "time.time"): "dates an event",
    ("metta/sweeps/ledger.py", "time.time"): "dates a sweep",
    ("metta/loggers/events/log.py", "time.time"): "dates an event",
    ("metta/loggers/sinks/tensorboard.py", "time.time"): "dates an event",
    ("metta/store/run_directory.py", "datetime.datetime.now"): "dates a lock, for people",
}  # fmt: skip


def wall_clocks(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every use of the wall clock, called or handed on."""
    tree = ast.parse(source)
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meanings |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            meanings |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, _, rest = ast.unparse(node).partition(".")
            name = ".".join(part for part in (meanings.get(first, first), rest) if part)
            if name in WALL_CLOCKS:
                yield node.lineno, name


@pytest.mark.parametrize(
    "source",
    [
        "import time\nstarted = time.time()",
        "import time as clock\nclock.time_ns()",
        "from time import time\ndeadline = time() + 5",
        "from time import time as now\ntimer = Timer(clock=now)",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\ndatetime.utcnow()",
        "import time\nclass Timer:\n    def __init__(self, clock=time.time): ...",
    ],
)
def test_the_wall_clock_is_found_when_it_is_used_in_any_spelling(source: str) -> None:
    assert list(wall_clocks(source))


def test_nothing_is_found_when_a_clock_never_jumps() -> None:
    source = (
        "import time\nfrom x import y\ntime.monotonic() + time.perf_counter()\ny.time()\nevent.time"
    )
    assert list(wall_clocks(source)) == []


def test_durations_are_measured_by_a_steady_clock_when_the_library_measures() -> None:
    used = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in LIBRARY
        for _, name in wall_clocks(path.read_text())
    }
    assert used - REASONS.keys() == set(), "use time.monotonic, or give a reason"
    assert REASONS.keys() - used == set(), "a reason without a use"


def test_nothing_takes_negative_time_when_the_wall_clock_jumps_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()
    jumps = itertools.cycle([0.0, -3600.0, 7200.0, -86400.0])
    monkeypatch.setattr(time, "time", lambda: 1e9 - 60.0 * next(calls) + next(jumps))
    changes = {
        "heartbeat_seconds": 1e-6,
        "tensorboard": True,
        "monitor_seconds": 0.01,
        "verbose": True,
    }
    with trainer_of("mlp", tmp_path, **changes) as trainer:
        trainer.train()
    events = list(read_events(tmp_path / "events.jsonl"))
    assert any(after.time < before.time for before, after in itertools.pairwise(events))
    rows = metric_rows(tmp_path / "events.jsonl")
    assert [row.epoch for row in rows] == list(range(1, EPOCHS + 1))
    assert all(row.metrics["overview/sps"] > 0 for row in rows)
    durations = [
        (k, v) for row in rows for k, v in row.metrics.items() if "time" in k or "timing" in k
    ]
    assert len(durations) > 3 * EPOCHS
    assert [(name, seconds) for name, seconds in durations if seconds < 0] == []
    assert sum(event.kind == "heartbeat" for event in events) >= EPOCHS
