from pathlib import Path

from metta.loggers import EventLog, StatsClient, read_events


def test_a_run_is_told_as_events_when_a_client_records_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, run_id="cart") as log:
        client = StatsClient(log)
        run_id = client.create_run("cartpole", {"seed": 1}, from_epoch=3)
        epoch_id = client.create_epoch(run_id, 0, 10)
        client.record_episodes(run_id, epoch_id, {"episode_return": [20.0, 31.0]})
        client.record_evaluation(
            epoch=10, agent_step=99, scores={"a/b": 1.0}, policy_uri="file://p"
        )
        client.record_policy(epoch=10, agent_step=99, uri="file://p")
        client.heartbeat(run_id, agent_step=99)
        client.end_run(run_id, "done")
    assert run_id == "cart"
    assert [(event.kind, event.payload) for event in read_events(path)] == [
        ("run_start", {"name": "cartpole", "attributes": {"seed": 1}, "continued": False,
                       "from_epoch": 3}),
        ("epoch", {"run_id": "cart", "epoch_id": "cart:0-10", "start_epoch": 0, "end_epoch": 10,
                   "attributes": {}}),
        ("episodes", {"run_id": "cart", "epoch_id": "cart:0-10",
                      "stats": {"episode_return": [20.0, 31.0]}}),
        ("evaluation", {"run_id": "cart", "epoch": 10, "agent_step": 99, "policy_uri": "file://p",
                        "scores": {"a/b": 1.0}}),
        ("policy", {"run_id": "cart", "epoch": 10, "agent_step": 99, "uri": "file://p"}),
        ("heartbeat", {"run_id": "cart", "agent_step": 99}),
        ("run_end", {"run_id": "cart", "reason": "done", "outcome": "done"}),
    ]  # fmt: skip


def test_the_run_goes_on_when_a_log_has_events_of_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    ids = []
    for _ in range(2):
        with EventLog(path) as log:
            ids.append(StatsClient(log).create_run("cartpole"))
    assert ids[0] == ids[1]
    assert [event.payload["continued"] for event in read_events(path)] == [False, True]
