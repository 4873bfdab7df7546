"""The commands on a database of either kind, from a real training to answers."""

import json
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.loggers import read_events
from metta.rl.trainer import train
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

SETTINGS = {
    "total_timesteps": 64,
    "num_envs": 2,
    "horizon": 8,
    "hidden_size": 8,
    "checkpoint_interval": 2,
    "evaluate_interval": 2,
    "eval_episodes": 2,
    "verbose": False,
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a real run."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "first", apply_settings(TrainingConfig(), SETTINGS))
    return str(folder)


def test_a_real_run_is_in_the_answers_when_it_was_trained_and_loaded(
    url: str,
    output: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = list(read_events(Path(output) / "first" / "events.jsonl"))
    monkeypatch.setenv("METTA_STATS_URL", url)
    capsys.readouterr()
    for number in (len(events), 0):
        assert main(["stats", "ingest", "--output", output]) == 0
        shown = capsys.readouterr().out
        assert f": {number} new events" in shown
        assert "a-password-for-tests" not in shown
    assert main(["runs", "show", "first", "--database", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["runs", "first", "--output", output, "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    for name in (
        "status",
        "epoch",
        "agent_step",
        "reward",
        "score",
        "metrics",
        "scores",
        "policies",
    ):
        assert found[name] == local[name], name
    assert (found["status"], found["agent_step"]) == ("done", 64)
    assert found["scores"]["simulations"]
    assert len(found["policies"]) == 2
    rows = [event.payload for event in events if event.kind == "metrics"]
    sql = "SELECT DISTINCT epoch, agent_step FROM metrics ORDER BY epoch"
    assert main(["stats", "query", sql, "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers == [{name: row[name] for name in ("epoch", "agent_step")} for row in rows]
    assert main(["stats", "export", "metrics", str(tmp_path / "m.csv"), "--run", "first"]) == 0
    count = sum(len(row["metrics"]) for row in rows)
    assert f"wrote {count:,} rows" in capsys.readouterr().out
    assert main(["stats", "query", "DELETE FROM runs"]) == 1
    assert main(["stats", "tables"]) == 0
    assert "a-password-for-tests" not in "".join(capsys.readouterr())
