"""Questions to a database of either kind, with answers known by hand."""

import math
from pathlib import Path

import pytest

from metta.database import Ingester, StatsReader, queries, run_query
from metta.errors import DatabaseError
from metta.loggers import EventLog, StatsClient, StatsLogger
from metta.rl.training_state import StatsTracker
from metta.sim.scores import EvalRewardSummary

SCORES = {"maze/small": 1.0, "maze/large": 4.0, "race/long/oval": 10.0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "first" / "events.jsonl"


def test_curves_and_latest_values_are_those_logged_when_metrics_come_and_go(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    with EventLog(log, "r") as writer:
        logger = StatsLogger(event_log=writer)
        logger.log({"a": 1.0, "b": 5.0}, agent_step=10, epoch=1)
        logger.log({"a": math.nan}, agent_step=20, epoch=2)
        logger.log({"a": 3.0, "c": math.inf}, agent_step=30, epoch=3)
    ingester.ingest(log)
    curve = reader.metric_curve("r", "a")
    assert [(point.epoch, point.agent_step) for point in curve] == [(1, 10), (2, 20), (3, 30)]
    assert str([point.value for point in curve]) == "[1.0, nan, 3.0]"
    assert reader.metric_names("r") == ["a", "b", "c"]
    assert str(reader.latest_metrics("r")) == "{'a': 3.0, 'b': 5.0, 'c': nan}"
    assert reader.metric_curve("r", "unknown") == []


def test_means_are_those_of_the_trainer_when_some_episodes_did_not_report(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    reports = [
        {"episode_return": [1.0, 2.0, 3.0], "episode_length": [4.0, 5.0, 9.0], "coins": [6.0]},
        {"episode_return": [6.0], "episode_length": [7.0], "gems": [3.0]},
    ]
    tracker = StatsTracker()
    with EventLog(log, "r") as writer:
        client = StatsClient(writer)
        for number, stats in enumerate(reports):
            tracker.add_rollout_stats(stats)
            client.record_episodes("r", client.create_epoch("r", number, number + 1), stats)
    ingester.ingest(log)
    means = {mean.name: mean for mean in reader.episode_means("r")}
    assert {name: mean.mean for name, mean in means.items()} == tracker.summary()
    assert means["coins"] == queries.StatisticMean("coins", 6.0, samples=1, episodes=4)
    assert means["episode_return"] == queries.StatisticMean("episode_return", 3.0, 4, 4)


def test_a_mean_leaves_out_what_is_no_number_when_episodes_reported_it(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    with EventLog(log, "r") as writer:
        client = StatsClient(writer)
        stats = {"episode_return": [1.0, math.nan, 3.0], "odd": [math.nan], "some": [math.inf, 2.0]}
        client.record_episodes("r", client.create_epoch("r", 0, 3), stats)
    ingester.ingest(log)
    means = {mean.name: mean for mean in reader.episode_means("r")}
    assert (means["episode_return"].mean, means["episode_return"].samples) == (2.0, 2)
    assert (means["some"].mean, means["some"].samples) == (2.0, 1)
    assert math.isnan(means["odd"].mean)
    assert (means["odd"].samples, means["odd"].episodes) == (0, 3)
    episodes = reader.episodes("r")
    assert [(e.start_epoch, e.end_epoch) for e in episodes] == [(0, 3)] * 3
    assert math.isnan(episodes[1].episode_return)


def test_replays_are_listed_when_they_were_recorded_and_not_taken_back(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    with EventLog(log, "r") as writer:
        for epoch, policy in ((1, None), (2, "file://p"), (3, "file://q")):
            where = {"run_id": "r", "epoch": epoch, "agent_step": 10 * epoch}
            about = {"simulation": "maze/small", "uri": f"file://{epoch}", "policy_uri": policy}
            writer.append("replay", {**where, **about})
        StatsClient(writer).create_run("cart", from_epoch=2)
    assert ingester.ingest(log).num_rows == 2
    first, second = reader.replays("r")
    assert (first.run, first.epoch, first.agent_step, first.policy_uri) == ("r", 1, 10, None)
    assert (second.simulation, second.uri) == ("maze/small", "file://2")
    assert second.policy_uri == "file://p"
    assert second.time > 0
    assert reader.replays() == [first, second]
    assert reader.replays("another") == []


def test_scores_equal_those_of_the_summary_when_simulations_have_categories(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    summary = EvalRewardSummary(SCORES)
    with EventLog(log, "r") as writer:
        client = StatsClient(writer)
        client.record_evaluation(
            epoch=3, agent_step=30, scores=summary.to_dict(), policy_uri="file://p"
        )
        client.record_evaluation(epoch=4, agent_step=40, scores={"maze/small": 7.0})
    ingester.ingest(log)
    found = reader.simulation_scores("r")
    assert {s.simulation: s.score for s in found if s.epoch == 3} == SCORES
    assert {s.category for s in found} == {"maze", "race"}
    categories = {c.category: c.score for c in reader.category_scores() if c.epoch == 3}
    assert categories == summary.category_scores == {"maze": 2.5, "race": 10.0}
    suites = reader.suite_scores("r")
    assert [(s.epoch, s.score, s.num_categories) for s in suites] == [(3, 6.25, 2), (4, 7.0, 1)]
    assert summary.avg_category_score == 6.25
    assert [s.policy_uri for s in suites] == ["file://p", None]
    assert reader.suite_scores("another") == []


def test_a_mean_is_nan_when_one_of_its_scores_is(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    with EventLog(log, "r") as writer:
        scores = {**SCORES, "maze/small": math.nan}
        StatsClient(writer).record_evaluation(epoch=1, agent_step=1, scores=scores)
    ingester.ingest(log)
    found = {c.category: c.score for c in reader.category_scores()}
    assert math.isnan(found["maze"])
    assert found["race"] == 10.0
    assert math.isnan(reader.suite_scores()[0].score)


def test_a_run_says_how_it_stands_when_it_runs_ends_and_goes_on(
    ingester: Ingester, reader: StatsReader, log: Path
) -> None:
    with EventLog(log, "r") as writer:
        client = StatsClient(writer)
        client.create_run("cart", {"seed": 1})
        client.heartbeat("r", agent_step=5, epoch=1)
        client.record_policy(epoch=1, agent_step=5, uri="file://p")
        StatsLogger(event_log=writer).log({"a": 1.0}, agent_step=10, epoch=2)
        ingester.ingest(log)
        run = reader.find_run("cart")
        assert (run.run, run.attributes, run.outcome) == ("r", {"seed": 1}, None)
        assert (run.starts, run.epoch, run.agent_step) == (1, 2, 10)
        client.end_run("r", "a signal", "stopped")
        ingester.ingest(log)
        assert (reader.find_run("r").outcome, reader.find_run("r").reason) == (
            "stopped",
            "a signal",
        )
        client.create_run("cart", {"seed": 2}, from_epoch=2)
        ingester.ingest(log)
    again = reader.find_run("r")
    assert (again.outcome, again.ended, again.attributes, again.starts) == (
        None,
        None,
        {"seed": 2},
        2,
    )
    assert again.started == run.started
    assert [policy.uri for policy in reader.policies("r")] == ["file://p"]
    with reader.connect() as connection:
        beats = run_query(connection, "SELECT time FROM heartbeats").rows
    assert beats == [(again.last_heartbeat,)]


def test_the_error_says_what_there_is_when_a_run_is_not_found(
    ingester: Ingester, reader: StatsReader, tmp_path: Path
) -> None:
    for number in (1, 2):
        with EventLog(tmp_path / str(number) / "events.jsonl", f"id{number}") as writer:
            StatsClient(writer).create_run("cartpole")
    ingester.ingest_folder(tmp_path)
    with pytest.raises(DatabaseError, match="did you mean 'cartpole'"):
        reader.find_run("cartpol")
    with pytest.raises(DatabaseError, match=r"2 runs are named 'cartpole'.*id1, id2"):
        reader.find_run("cartpole")
    for ask in (reader.episodes, reader.episode_means, reader.latest_metrics, reader.metric_names):
        with pytest.raises(DatabaseError, match="there is no run 'nobody'"):
            ask("nobody")


def test_a_reader_cannot_write_when_the_database_is_a_server(
    postgres_url: str, tmp_path: Path
) -> None:
    with Ingester(postgres_url) as ingester:
        ingester.prepare()
    with (
        StatsReader(postgres_url) as reader,
        pytest.raises(DatabaseError, match="read-only transaction"),
        reader.connect() as connection,
    ):
        connection.exec_driver_sql("DELETE FROM runs")
