import json
import logging
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from metta.errors import MissingExtraError
from metta.loggers import MetricRow, WandbSink, close_wandb_run, open_wandb_run
from metta.train.run_config import WandbConfig
from tests.loggers.sink_cases import FakeRun, wandb_records

OFFLINE = WandbConfig(mode="offline", project="proj", tags=("a", "b"))


def process_globals() -> tuple[object, ...]:
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    streams = sys.stdout, sys.stderr, sys.excepthook, sys.exit
    return signals, streams, dict(os.environ), list(logging.root.handlers)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_numbers_are_in_the_run_directory_when_a_run_is_offline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    run_dir = tmp_path / "run"
    before, running = process_globals(), children()
    run = open_wandb_run(OFFLINE, run_dir, "näme", {"trainer": {"seed": 3}})
    assert run is not None
    try:
        assert (run.name, run.project) == ("näme", "proj")
        during = process_globals()
        sink = WandbSink(run)
        sink.write(MetricRow(100, 1, {"losses/a": 0.5, "nan": float("nan")}))
        sink.write(MetricRow(200, 2, {"losses/a": 0.25}))
        sink.close()
        run.summary["best"] = 7.0
    finally:
        close_wandb_run(run)
    assert process_globals() == before
    assert during[:2] == before[:2]
    assert children() <= running
    assert list(home.iterdir()) == []
    assert [path.name for path in run_dir.iterdir()] == ["wandb"]
    assert capfd.readouterr() == ("", "")
    (folder,) = (run_dir / "wandb").glob(f"offline-run-*-{run.id}")
    records = list(wandb_records(folder / f"run-{run.id}.wandb"))
    history = [_items(record.history.item) for record in records if record.HasField("history")]
    assert [(row["metric/agent_step"], row["losses/a"]) for row in history] == [
        (100, 0.5),
        (200, 0.25),
    ]
    summary: dict[str, object] = {}
    for record in records:
        if record.HasField("summary"):
            summary |= _items(record.summary.update)
    assert (summary["losses/a"], summary["best"]) == (0.25, 7.0)
    axes = {r.metric.glob_name or r.metric.name: r.metric.step_metric for r in records
            if r.HasField("metric")}  # fmt: skip
    assert axes["*"] == "metric/agent_step"
    (started,) = [record.run for record in records if record.HasField("run")]
    assert (started.display_name, list(started.tags)) == ("näme", ["a", "b"])
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["trainer"] == {"seed": 3}


def _items(items: object) -> dict[str, object]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_nothing_is_opened_when_wandb_is_off(tmp_path: Path) -> None:
    assert open_wandb_run(WandbConfig(), tmp_path, "name", {}) is None
    close_wandb_run(None)
    assert list(tmp_path.iterdir()) == []


def test_the_extra_is_named_when_wandb_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    before = dict(os.environ)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[wandb\]"):
        open_wandb_run(OFFLINE, tmp_path, "name", {})
    assert dict(os.environ) == before


def test_steps_are_the_axis_when_rows_are_logged() -> None:
    run = FakeRun()
    sink = WandbSink(run)
    sink.write(MetricRow(10, 1, {"a": 1.0}))
    sink.write(MetricRow(20, 2, {"a": 2.0}))
    assert run.axes == {"metric/agent_step": None, "*": "metric/agent_step"}
    assert run.rows[1] == {"a": 2.0, "metric/agent_step": 20, "metric/epoch": 2}


def test_the_run_of_wandb_is_the_same_when_a_run_goes_on(tmp_path: Path) -> None:
    ids = []
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        run = open_wandb_run(OFFLINE, folder, "name", {})
        assert run is not None
        ids.append(run.id)
        close_wandb_run(run)
    assert ids[0] == ids[1] != ids[2]
