"""Events -> rows, without any database."""

import json
from typing import Any

import pytest

from metta.database.event_rows import rows_of
from metta.loggers import Event
from metta.loggers.events.lines import parse_event


def event_of(kind: str, payload: dict[str, Any], **changes: Any) -> Event:
    about = {"run": "r", "sequence": 3, "time": 5.0, "kind": kind, "payload": payload}
    return Event(**(about | changes))


def test_numbers_have_the_types_of_the_tables_when_the_log_has_others() -> None:
    payload = {"agent_step": 10.0, "epoch": 2, "metrics": {"a": True, "b": 7, "c": "text"}}
    line = json.dumps(vars(event_of("metrics", payload, sequence=3.0, time=10**40)))
    found = rows_of(parse_event(line.encode()))
    assert repr(found.event.sequence) == "3"
    assert found.event.time == 1e40
    values = {row["name"]: row["value"] for row in found.rows["metric_values"]}
    assert repr(values) == "{'a': 1.0, 'b': 7.0, 'c': None}"
    assert found.run == {"epoch": 2, "agent_step": 10, "last_event": 1e40}


@pytest.mark.parametrize(
    ("stats", "episodes", "others"),
    [
        ({"episode_return": [1.0, 2.0], "episode_length": [3.0, 4.0]}, 2, 0),
        ({"episode_return": [1.0, 2.0], "coins": [5.0]}, 2, 1),
        ({"coins": [5.0, 6.0, 7.0], "gems": [1.0]}, 3, 4),
        ({"episode_return": [], "episode_length": []}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_there_is_a_row_per_episode_when_statistics_differ_in_length(
    stats: dict[str, list[float]], episodes: int, others: int
) -> None:
    found = rows_of(event_of("episodes", {"epoch_id": "r:4-7", "stats": stats}))
    assert len(found.rows["episodes"]) == episodes
    assert len(found.rows["episode_values"]) == others
    spans = {(row["start_epoch"], row["epoch"]) for row in found.rows["episodes"]}
    assert spans <= {(4, 7)}


@pytest.mark.parametrize("epoch_id", [None, "", "mine", "r:4-", "r:a-b", "r:1-" + "9" * 30])
def test_episodes_are_of_no_epoch_when_the_id_does_not_say_which(epoch_id: str | None) -> None:
    payload = {"epoch_id": epoch_id, "stats": {"episode_return": [1.0]}}
    (row,) = rows_of(event_of("episodes", payload)).rows["episodes"]
    assert row["epoch"] is None


@pytest.mark.parametrize("scores", [{"a/b": 1.0}, {"simulation_scores": {"a/b": 1.0}}])
def test_scores_are_found_when_they_come_in_either_form(scores: dict[str, Any]) -> None:
    payload = {"epoch": 1, "agent_step": 2, "scores": scores}
    found = rows_of(event_of("evaluation", payload))
    (row,) = found.rows["simulation_scores"]
    assert row == {"simulation": "a/b", "epoch": 1, "category": "a", "score": 1.0}


def test_every_agent_has_its_numbers_when_an_evaluation_tells_of_them() -> None:
    agents = {
        "returns": [[1.0, 3.0]],
        "lengths": [[4, 5]],
        "evaluated": [True, True],
        "infos": [[{}, {"coins": 2.0}]],
    }
    told = {"returns": [2.0], "lengths": [5], "num_missing": 0, "agents": agents}
    scores = {"simulation_scores": {"a/b": 2.0}, "episodes": {"a/b": told}}
    found = rows_of(event_of("evaluation", {"epoch": 1, "agent_step": 2, "scores": scores})).rows
    where = {"simulation": "a/b", "epoch": 1, "number": 0}
    assert found["simulation_episodes"] == [{**where, "episode_return": 2.0, "episode_length": 5.0}]
    values = {(row["agent"], row["name"]): row["value"] for row in found["agent_values"]}
    assert values == {
        (0, "episode_return"): 1.0, (1, "episode_return"): 3.0,
        (0, "episode_length"): 4.0, (1, "episode_length"): 5.0, (1, "env/coins"): 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "episodes",
    [3, {"a/b": 3}, {"a/b": {"returns": 3}}, {"a/b": {"agents": 3}},
     {"a/b": {"agents": {"returns": [3]}}}, {"a/b": {"agents": {"infos": [[3]]}}}],
)  # fmt: skip
def test_a_line_is_refused_when_its_episodes_are_none(episodes: Any) -> None:
    scores = {"simulation_scores": {"a/b": 2.0}, "episodes": episodes}
    with pytest.raises(ValueError, match="must be"):
        rows_of(event_of("evaluation", {"epoch": 1, "agent_step": 2, "scores": scores}))


@pytest.mark.parametrize(
    ("kind", "payload", "epoch"),
    [
        ("rewind", {"from_epoch": 4}, 4),
        ("run_start", {"name": "a", "from_epoch": 4}, 4),
        ("run_start", {"name": "a"}, 0),
        ("metrics", {"epoch": 1, "agent_step": 1, "metrics": {}}, None),
    ],
)
def test_rows_are_taken_back_when_the_event_says_from_where(
    kind: str, payload: dict[str, Any], epoch: int | None
) -> None:
    assert rows_of(event_of(kind, payload)).rewinds_to == epoch


def test_a_heartbeat_counts_when_its_numbers_are_odd() -> None:
    found = rows_of(event_of("heartbeat", {"run_id": "r", "epoch": None, "agent_step": 0.5}))
    (row,) = found.rows["heartbeats"]
    assert (row["epoch"], row["agent_step"]) == (None, None)
    assert row["numbers"] == {"epoch": None, "agent_step": 0.5}
    assert found.run["last_heartbeat"] == 5.0
