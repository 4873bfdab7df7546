"""What loggers write is without secrets, and costs nothing where there are none."""

import json
import sys
import warnings
from pathlib import Path

import pytest

from metta.errors import MettaWarning
from metta.loggers import (
    EventLog,
    MetricRow,
    StatsLogger,
    WandbSink,
    close_wandb_run,
    open_wandb_run,
    read_events,
)
from metta.loggers.events.plain_json import to_json
from metta.train.run_config import WandbConfig
from tests.loggers.sink_cases import MemorySink, wandb_records

SECRET = "s3cret \"välue\" 'x'"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    return SECRET


def test_events_have_stars_when_their_texts_hold_a_secret(tmp_path: Path, secret: str) -> None:
    payload = {"reason": f"no {secret}!", secret: [{"deep": (secret, 1)}], "error": OSError(secret)}
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append("note", payload)
        log.append("note", {"url": "https://bot:pw@host", "password": "abc", "loss": 0.5})
    first, second = read_events(tmp_path / "events.jsonl")
    assert first.payload == {"reason": "no ***!", "***": [{"deep": ["***", 1]}], "error": "***"}
    assert second.payload == {"url": "https://***@host", "password": "***", "loss": 0.5}
    assert b"s3cret" not in (tmp_path / "events.jsonl").read_bytes()


def test_numbers_stay_numbers_when_a_secret_has_the_same_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "123456")
    assert json.loads(to_json({"agent_step": 123456, "text": "123456"})) == {
        "agent_step": 123456,
        "text": "***",
    }


def test_events_and_warnings_have_stars_when_a_sink_blabs(tmp_path: Path, secret: str) -> None:
    sink = MemorySink()
    sink.problem = OSError(f"no {secret}!")
    log = EventLog(tmp_path / "events.jsonl")
    logger = StatsLogger([sink], event_log=log, run_dir=tmp_path, drain_seconds=0.05)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", MettaWarning)
        logger.log({"loss": 0.5}, agent_step=1, epoch=1)
        logger.close()
    log.close()
    said = [str(warning.message) for warning in seen]
    assert "the memory sink failed (OSError: no ***!); records wait and are tried again" in said
    told = [event.payload for event in read_events(log.path) if event.kind == "sink_failure"]
    assert told[0]["message"].startswith("failed (OSError: no ***!)")
    assert "s3cret" not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_undelivered_rows_have_stars_when_a_name_holds_a_secret(
    tmp_path: Path, secret: str
) -> None:
    sink = MemorySink()
    sink.problem = OSError("no")
    logger = StatsLogger([sink], run_dir=tmp_path, drain_seconds=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MettaWarning)
        logger.log({f"server {secret}/loss": 0.5}, agent_step=1, epoch=1)
        logger.close()
    row = json.loads((tmp_path / "undelivered-memory.jsonl").read_text())
    assert row["metrics"] == {"server ***/loss": 0.5}


def test_wandb_gets_neither_secrets_nor_the_command_line_when_a_run_is_opened(
    tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k3y" * 14)
    monkeypatch.setattr(sys, "argv", ["script.py", "--password=sw0rdfish", "sw0rdfish"])
    config = {"server": {"auth": "sw0rdfish"}, "note": f"with {secret}", "seed": 3}
    run = open_wandb_run(WandbConfig(mode="offline"), tmp_path, "mine", config)
    assert run is not None
    WandbSink(run).write(MetricRow(1, 1, {"loss": 0.5}))
    close_wandb_run(run)
    (file,) = tmp_path.rglob("*.wandb")
    (started,) = [record.run for record in wandb_records(file) if record.HasField("run")]
    found = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert found["server"] == {"auth": "***"}
    assert (found["note"], found["seed"]) == ("with ***", 3)
    for path in tmp_path.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for leaked in (b"sw0rdfish", b"s3cret", b"k3yk3y"):
            assert leaked not in content, path
