"""Logs -> rows, each once: the same on SQLite and on a real PostgreSQL."""

import math
import shutil
import tempfile
from pathlib import Path

import pytest
from event_logs import (
    as_texts,
    check_metrics,
    clean_dump,
    dump,
    metric_rows_of,
    write_epochs,
    write_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.training import trainer_of
from metta.database import Ingester, StatsReader, log_reader
from metta.errors import DatabaseError, EventLogError
from metta.loggers import EventLog, StatsClient, read_events
from metta.loggers.events.history import metric_rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first" / "events.jsonl"


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_LINES", 3)


def test_every_row_is_there_when_a_whole_run_was_loaded(
    ingester: Ingester, url: str, log: Path
) -> None:
    run = write_run(log, 20)
    report = ingester.ingest(log)
    assert report.num_events == len(list(read_events(log))) == 2 + 3 * 20 + 4 * 5
    # an epoch: itself, metrics, episodes, a statistic; an evaluation: itself, scores, episodes and their
    # agents, and three more
    assert report.num_rows == 20 * (1 + 6 + 2 + 1) + 5 * (1 + 3 + 3 + 3 + 1 + 1 + 1)
    found = dump(url)
    sizes = {"metrics": 120, "episode_metrics": 20, "epochs": 20, "episodes": 40, "policies": 5}
    sizes |= {"evaluations": 5, "scores": 15, "category_scores": 10, "suite_scores": 5}
    sizes |= {"heartbeats": 5, "replays": 5, "runs": 1, "events": 82}
    sizes |= {"simulation_episodes": 15, "agent_metrics": 15}
    assert {name: len(rows) for name, rows in found.items()} == sizes
    check_metrics(url, log, run)


def test_the_database_says_what_the_log_says_when_a_real_training_wrote_it(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    with trainer_of("evaluated", tmp_path / "runs" / "real", heartbeat_seconds=0.01) as trainer:
        trainer.train()
    path = tmp_path / "runs" / "real" / "events.jsonl"
    events = list(read_events(path))
    report = ingester.ingest_folder(tmp_path / "runs")
    assert (report.num_events, report.problems) == (len(events), {})
    check_metrics(url, path, events[0].run)
    kinds = [event.kind for event in events]
    returns = [
        number
        for event in events
        if event.kind == "episodes"
        for number in event.payload["stats"]["episode_return"]
    ]
    with StatsReader(url) as reader:
        (run,) = reader.runs()
        assert (run.outcome, run.starts, run.epoch) == ("done", 1, 12)
        assert [episode.episode_return for episode in reader.episodes(run.run)] == returns
        assert len(reader.policies()) == kinds.count("policy") > 0
        assert len(reader.simulation_scores()) == kinds.count("evaluation") > 0
    assert len(dump(url)["heartbeats"]) == kinds.count("heartbeat") > 0


def test_nothing_is_doubled_when_a_log_is_loaded_twice(
    ingester: Ingester, url: str, log: Path
) -> None:
    write_run(log, 10)
    ingester.ingest(log)
    before = dump(url)
    again = ingester.ingest(log)
    assert (again.num_events, again.num_rows) == (0, 0)
    with Ingester(url) as another:
        assert another.ingest(log).num_events == 0
    assert dump(url) == before


@pytest.mark.usefixtures("_small_batches")
def test_each_event_comes_once_when_two_ingesters_take_turns(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    with Ingester(url) as another, EventLog(log) as writer:
        StatsClient(writer).create_run("first")
        for epoch in range(12):
            write_epochs(writer, epoch, epoch + 1)
            (ingester if epoch % 2 else another).ingest(log)
        another.ingest(log)
    assert dump(url) == clean_dump(tmp_path, log)


def test_only_new_lines_are_read_when_a_log_has_grown(
    ingester: Ingester, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(log) as writer:
        write_epochs(writer, 0, 10)
        ingester.ingest(log)
        write_epochs(writer, 10, 11)
    parsed = []
    original = log_reader.rows_of
    monkeypatch.setattr(log_reader, "rows_of", lambda e: parsed.append(e.sequence) or original(e))
    assert ingester.ingest(log).num_events == len(parsed) == 3


def test_the_rest_is_loaded_when_the_place_in_the_log_is_not_known(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    """A log without its first lines is another file: events are known by run and sequence."""
    with EventLog(log) as writer:
        StatsClient(writer).create_run("first")
        write_epochs(writer, 0, 6)
        ingester.ingest(log)
        write_epochs(writer, 6, 9)
    expected = clean_dump(tmp_path, log)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[4:]))
    assert ingester.ingest(log).num_events == 3 * 3 + 4
    assert dump(url) == expected


def test_a_line_waits_when_its_end_is_not_written_yet(ingester: Ingester, log: Path) -> None:
    write_run(log, 3)
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    last = len(list(read_events(log)))
    assert ingester.ingest(log).num_events == last
    assert ingester.ingest(log).num_events == 0
    log.write_bytes(whole)
    assert ingester.ingest(log).num_events == 1


@pytest.mark.parametrize("content", [b"", b'{"run": "a", "seq'])
def test_nothing_happens_when_a_log_has_no_line_yet(
    ingester: Ingester, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    assert ingester.ingest(path).num_events == 0


def rewound_log(path: Path) -> str:
    """A run that was killed and continued from before its last row, three times."""
    with EventLog(path) as log:
        client = StatsClient(log)
        run = client.create_run("first")
        write_epochs(log, 0, 9)
        client.create_run("first", from_epoch=6)
        write_epochs(log, 6, 8, shift=100.0)
        log.append("rewind", {"from_epoch": 7})
        write_epochs(log, 7, 12, shift=200.0)
        client.create_run("first", from_epoch=12)
        write_epochs(log, 12, 13, shift=300.0)
    return run


STORIES = st.lists(
    st.tuples(
        st.sampled_from(["metrics"] * 6 + ["run_start", "rewind"]),
        st.sampled_from("ab"),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30)
@given(STORIES, st.integers(1, 8), st.integers(0, 25))
def test_the_rows_that_count_are_those_of_the_history_when_runs_go_back_at_random(
    story: list[tuple[str, str, int]], batch: int, pause: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        Ingester(f"{folder}/statistics.sqlite") as ingester,
    ):
        patch.setattr(log_reader, "_MAX_LINES", batch)
        log = Path(folder) / "events.jsonl"
        for number, (kind, run, epoch) in enumerate(story):
            with EventLog(log, run) as writer:
                if kind == "metrics":
                    numbers = {"x": float(number)}
                    writer.append(kind, {"epoch": epoch, "agent_step": number, "metrics": numbers})
                else:
                    writer.append(kind, {"from_epoch": epoch})
            if number == pause:
                ingester.ingest(log)
        ingester.ingest(log)
        with StatsReader(f"{folder}/statistics.sqlite") as reader, reader.connect() as connection:
            known = [run.run for run in reader.runs()]
            rows = [row for run in known for row in metric_rows_of(connection, run)]
        assert sorted(as_texts(rows)) == sorted(as_texts(metric_rows(log)))


@pytest.mark.parametrize("lines", [1, 7, 500])
def test_later_rows_are_taken_back_when_a_run_goes_on_from_before_them(
    ingester: Ingester, url: str, log: Path, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_MAX_LINES", lines)
    run = rewound_log(log)
    ingester.ingest(log)
    check_metrics(url, log, run)
    with StatsReader(url) as reader:
        first = [episode.episode_return for episode in reader.episodes(run)][::2]
        expected = [*range(1, 7), 107, *range(208, 213), 313]
        assert first == expected
        assert [policy.epoch for policy in reader.policies(run)] == [4, 8, 12]
        small = [s.score for s in reader.simulation_scores(run) if s.simulation == "maze/small"]
        assert small == [4.0, 208.0, 212.0]
        assert reader.runs()[0].starts == 3
    assert [row[2] for row in sorted(dump(url)["epochs"], key=lambda row: row[1])] == list(
        range(13)
    )


def test_late_scores_are_rows_of_metrics_behind_those_of_their_epoch(
    ingester: Ingester, url: str, log: Path
) -> None:
    run = write_run(log, 6)
    with EventLog(log) as writer:
        client = StatsClient(writer)
        for epoch in (2, 5):
            scores = {"simulation_scores": {"maze/late": 0.5}, "late_row": {"eval_maze/late": 0.5}}
            client.record_evaluation(epoch=epoch, agent_step=8 * epoch, scores=scores)
    ingester.ingest(log)
    check_metrics(url, log, run)
    with StatsReader(url) as reader, reader.connect() as connection:
        rows = metric_rows_of(connection, run)
    assert [row.epoch for row in rows if "eval_maze/late" in row.metrics] == [2, 5]


def test_rows_of_another_run_stay_when_a_run_begins_in_the_same_log(
    ingester: Ingester, url: str, log: Path
) -> None:
    write_run(log, 4, run_id="a")
    write_run(log, 5, run_id="b")
    ingester.ingest(log)
    with StatsReader(url) as reader, reader.connect() as connection:
        rows = [row for run in "ab" for row in metric_rows_of(connection, run)]
        assert as_texts(rows) == as_texts(metric_rows(log))
        assert [run.run for run in reader.runs()] == ["a", "b"]


@pytest.mark.parametrize("last", [7, 20])  # the log is shorter, or longer, than it was before
def test_what_the_log_says_now_counts_when_a_loss_of_power_took_lines_back(
    ingester: Ingester, url: str, log: Path, tmp_path: Path, last: int
) -> None:
    with EventLog(log) as writer:
        client = StatsClient(writer)
        client.create_run("first")
        write_epochs(writer, 0, 5)
        safe = log.read_bytes()
        write_epochs(writer, 5, 9)
    ingester.ingest(log)
    log.write_bytes(safe)
    assert ingester.ingest(log).num_events == 0  # what was loaded did happen
    assert len(dump(url)["epochs"]) == 9
    with EventLog(log) as writer:
        StatsClient(writer).create_run("first", from_epoch=5)
        write_epochs(writer, 5, last, shift=50.0)
    ingester.ingest(log)
    assert dump(url) == clean_dump(tmp_path, log)


def test_loading_goes_on_when_a_folder_of_a_run_was_moved(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    write_run(log, 4)
    ingester.ingest(log)
    moved = log.parent.rename(log.parent.with_name("second")) / log.name
    with EventLog(moved) as writer:
        write_epochs(writer, 4, 6)
    assert ingester.ingest(moved).num_events == 6
    assert dump(url) == clean_dump(tmp_path, moved)


def test_the_second_is_refused_when_copies_of_a_log_grow_apart(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    write_run(log, 2)
    copy = log.parent.with_name("copy") / log.name
    shutil.copytree(log.parent, copy.parent)
    for path in (log, copy):
        with EventLog(path) as writer:
            write_epochs(writer, 2, 4)
    ingester.ingest(log)
    with pytest.raises(DatabaseError, match="begin alike and continue differently"):
        ingester.ingest(copy)
    assert dump(url) == clean_dump(tmp_path, log)


def test_a_typed_error_tells_when_two_logs_claim_the_same_run(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    write_run(log, 2, run_id="same")
    other = tmp_path / "runs" / "other" / "events.jsonl"
    write_run(other, 3, run_id="same")
    ingester.ingest(log)
    with pytest.raises(DatabaseError, match="another event 1 of run 'same'"):
        ingester.ingest(other)
    assert dump(url) == clean_dump(tmp_path, log)
    ingester.forget_run("same")
    ingester.ingest(other)
    assert dump(url) == clean_dump(tmp_path, other)


def test_lines_before_are_kept_when_a_line_is_damaged(
    ingester: Ingester, url: str, log: Path, tmp_path: Path
) -> None:
    write_run(log, 4)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:6], b"\x00\xff not an event\n", *lines[6:]]))
    for _ in range(2):
        with pytest.raises(EventLogError, match=r"line 7 of .*events.jsonl' is not an event"):
            ingester.ingest(log)
    assert len(dump(url)["events"]) == 6
    log.write_bytes(b"".join(lines))
    ingester.ingest(log)
    assert dump(url) == clean_dump(tmp_path, log)


def test_a_problem_is_reported_and_others_go_on_when_one_log_of_a_folder_is_damaged(
    ingester: Ingester, url: str, tmp_path: Path
) -> None:
    bad, good = (tmp_path / "runs" / name / "events.jsonl" for name in ("bad", "good"))
    write_run(good, 2)
    bad.parent.mkdir()
    bad.write_text("nothing\n")
    report = ingester.ingest_folder(tmp_path / "runs")
    assert list(report.problems) == [str(bad)]
    assert dump(url) == clean_dump(tmp_path, good)


def test_a_run_has_the_name_of_its_folder_when_nobody_recorded_its_start(
    ingester: Ingester, url: str, log: Path
) -> None:
    with EventLog(log) as writer:
        write_epochs(writer, 0, 1)
    ingester.ingest(log)
    with StatsReader(url) as reader:
        (run,) = reader.runs()
        assert (run.name, run.starts, run.started) == ("first", 0, None)
        assert math.isnan(reader.latest_metrics(run.run)["losses/never"])
