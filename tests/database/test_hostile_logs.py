"""Lines that nobody should have written: typed errors that name the line, or rows that a database holds."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from event_logs import dump

from metta.database import Ingester, StatsReader
from metta.errors import EventLogError, MettaError
from metta.loggers import EventLog, read_events

METRICS = {"agent_step": 1, "epoch": 1, "metrics": {"a": 1.0}}


def line_of(**changes: Any) -> bytes:
    event = {"run": "r", "sequence": 2, "time": 1.5, "kind": "metrics", "payload": METRICS}
    return json.dumps(event | changes).encode() + b"\n"


DAMAGED = {
    "no JSON": b"{\n",
    "nothing": b"\n",
    "a list": b"[1, 2]\n",
    "a number": b"17\n",
    "not UTF-8": b'{"run": "\xff"}\n',
    "half of a pair, raw": b'{"run": "\xed\xa0\x80"}\n',
    "a zero byte": b"\x00" * 40 + b"\n",
    "nested without end": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "other fields": line_of(more=1),
    "no run": line_of(run=""),
    "a run that is no text": line_of(run=7),
    "a run of a thousand characters": line_of(run="r" * 1000),
    "a sequence that is no number": line_of(sequence="2"),
    "a sequence beyond 64 bits": line_of(sequence=2**63),
    "no time": line_of(time=None),
    "a time that is no number": b'{"run":"r","sequence":2,"time":NaN,"kind":"x","payload":{}}\n',
    "a kind that is no text": line_of(kind=["metrics"]),
    "a payload that is no mapping": line_of(payload=[1]),
    "metrics without an epoch": line_of(payload={"agent_step": 1, "metrics": {}}),
    "metrics without metrics": line_of(payload={"agent_step": 1, "epoch": 1}),
    "an epoch beyond 64 bits": line_of(payload={**METRICS, "epoch": 10**30}),
    "an epoch that is no whole number": line_of(payload={**METRICS, "epoch": 0.5}),
    "an epoch that is true": line_of(payload={**METRICS, "epoch": True}),
    "episodes that are no lists": line_of(kind="episodes", payload={"stats": {"a": 1.0}}),
    "a rewind to nowhere": line_of(kind="rewind", payload={"from_epoch": "never"}),
    "a policy without a place": line_of(kind="policy", payload={"epoch": 1, "agent_step": 1}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_the_error_names_the_line_when_a_line_is_no_event(name: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line_of(sequence=1) + DAMAGED[name] + line_of(sequence=3))
    url = str(tmp_path / "statistics.sqlite")
    with (
        Ingester(url) as ingester,
        pytest.raises(EventLogError, match=r"line 2 of .*events\.jsonl' is not an event") as caught,
    ):
        ingester.ingest(path)
    assert isinstance(caught.value, MettaError)
    assert len(str(caught.value)) < 1000
    assert len(dump(url)["events"]) == 1


ODD_NUMBERS = {
    "null": b"null", "not a number": b"NaN", "infinite": b"-Infinity", "too large": b"1e999",
    "a very long integer": b"1" + b"0" * 400, "a text": b'"1.0"', "a list": b"[1]", "a mapping": b"{}",
}  # fmt: skip


def test_the_value_is_nan_when_it_is_no_finite_number(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    lines = [
        line_of(sequence=number, payload={**METRICS, "metrics": {"a": "HERE"}}).replace(
            b'"HERE"', odd
        )
        for number, odd in enumerate(ODD_NUMBERS.values(), 1)
    ]
    lines.append(line_of(sequence=90, payload={**METRICS, "metrics": {"a": True, "b": 5}}))
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines))
    ingester.ingest(path)
    with StatsReader(url) as reader:
        values = [point.value for point in reader.metric_curve("r", "a")]
        assert [math.isnan(value) for value in values] == [True] * len(ODD_NUMBERS) + [False]
        assert (values[-1], reader.latest_metrics("r")["b"]) == (1.0, 5.0)


NAMES = {
    "a zero": "a\0b", "half of a pair": "a\ud800b", "quotes": "a'; DROP TABLE runs; --\"",
    "percent": "100%(name)s %s :colon", "very long": "x" * 20_000, "empty": "", "wide": "\N{SNOWMAN}" * 900,
    "right to left": "\u202eabc", "new lines": "a\r\nb",
}  # fmt: skip


def hostile_lines(text: str) -> list[bytes]:
    """Every kind of event, with this text wherever a text may be."""
    where = {"agent_step": 1, "epoch": 1}
    payloads: list[tuple[str, dict[str, Any]]] = [
        ("run_start", {"name": text, "attributes": {text: [text, math.inf, {"deep": text}]}}),
        ("metrics", {**where, "metrics": {text: 1.0}}),
        ("episodes", {"epoch_id": text, "stats": {text: [1.0, 2.0]}}),
        ("evaluation", {**where, "scores": {text: 1.0}, "policy_uri": text, "suite": text}),
        ("policy", {**where, "uri": text}),
        ("replay", {**where, "uri": text, "simulation": text, "policy_uri": text}),
        ("heartbeat", {**where, text: text}),
        (text or "other", {text: text}),
        ("run_end", {"reason": text, "outcome": text}),
    ]
    return [
        line_of(run="r" + text[:50], sequence=number, kind=kind, payload=payload)
        for number, (kind, payload) in enumerate(payloads, 1)
    ]


def test_rows_arrive_when_every_text_is_hostile(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    for number, (name, text) in enumerate(NAMES.items(), 1):
        path = tmp_path / name / "events.jsonl"
        path.parent.mkdir()
        path.write_bytes(b"".join(hostile_lines(text)))
        assert ingester.ingest(path).num_events == 9, name
        assert ingester.ingest(path).num_events == 0, name
        found = dump(url)
        sizes = {
            "runs": 1,
            "metrics": 1,
            "episodes": 2,
            "scores": 1,
            "policies": 1,
            "replays": 1,
            "heartbeats": 1,
        }
        assert {table: len(found[table]) for table in sizes} == {
            table: size * number for table, size in sizes.items()
        }, name


def test_an_event_is_kept_whole_when_its_kind_is_unknown(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, run_id="r") as log:
        log.append("eclipse", {"of": "the moon", "parts": [1, {"a": None}]})
        log.append("sink_failure", {"sink": "wandb", "message": "no network"})
    report = ingester.ingest(path)
    assert (report.num_events, report.num_rows, report.num_unknown) == (2, 0, 1)
    assert ingester.ingest(path).num_unknown == 0
    kept = {row[3]: row[4] for row in dump(url)["events"]}
    assert kept == {event.kind: event.payload for event in read_events(path)}


def test_a_doubled_line_counts_once_when_a_log_was_mended_badly(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line_of(sequence=1) + line_of(sequence=1) + line_of(sequence=2))
    assert ingester.ingest(path).num_events == 2
    assert len(dump(url)["metrics"]) == 2
