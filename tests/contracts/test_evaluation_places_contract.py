"""Wherever policies are evaluated, a run has the same records, scores, replays and best policy."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from faults.evaluation_kills import best_epoch, owed_files
from metta.loggers import read_events
from metta.replays.file import list_replays, load_replay
from metta.rl.clean_trainer import Trainer
from metta.store.checkpoints.late_scores import read_late_scores
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig
from tests.jobs.workers import working

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "total_timesteps": 160,
    "num_envs": 4,
    "horizon": 8,
    "num_minibatches": 2,
    "hidden_size": 8,
    "learning_rate": 0.05,
    "normalize_observations": True,
    "verbose": False,
    "checkpoint_interval": 1,
    "keep_last": 1,
    "eval_episodes": 3,
    "evaluate_interval": 1,
    "suite": "classic",
    "replay_interval": 2,
    "replay_max_steps": 5,
}


def evaluated(folder: Path, where: str) -> Path:
    config = apply_settings(TrainingConfig(), {**SETTINGS, "evaluation.where": where})
    run = folder / where
    with Trainer(config, run_dir=run) as trainer, ExitStack() as stack:
        if where == "queue":
            stack.enter_context(working(folder / "stats.db"))
        state = trainer.train()
        assert (state.epoch, state.eval_epoch, state.owes_scores) == (5, 5, False)
    return run


def records(run: Path) -> list[Any]:
    """Evaluations in their order, without what only scores from elsewhere have."""
    found = []
    for event in read_events(run / "events.jsonl"):
        about = event.payload
        if event.kind == "evaluation":
            told = {k: v for k, v in about["scores"].items() if k != "late_row"}
            policy = Path(about["policy_uri"]).name
            found.append((about["epoch"], about["agent_step"], policy, json.dumps(told)))
        elif event.kind == "replay":
            found.append((about["epoch"], about["simulation"], Path(about["uri"]).name))
    return found


def pictures(run: Path) -> dict[str, Any]:
    """The content of every replay, without the path of its policy."""
    return {
        path.name: (
            {**info.to_dict(), "policy_uri": Path(info.policy_uri or "").name},
            {name: track.content for name, track in load_replay(path).tracks.items()},
        )
        for path, info in list_replays(run / "replays")
    }


def late_rows(run: Path) -> list[Any]:
    events = read_events(run / "events.jsonl")
    return [one.payload["scores"].get("late_row") for one in events if one.kind == "evaluation"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = evaluated(tmp_path_factory.mktemp("here"), "here")
    assert [one[0] for one in records(run)] == [1, 2, 2, 2, 3, 4, 4, 4, 5, 5, 5]
    assert len({one[3] for one in records(run) if len(one) == 4}) > 1
    return run


@pytest.mark.parametrize("where", ["process", "queue", pytest.param("ray", marks=pytest.mark.slow)])
def test_records_equal_those_of_the_process_that_trains(
    here: Path, tmp_path: Path, where: str
) -> None:
    run = evaluated(tmp_path, where)
    assert sorted(records(run), key=repr) == sorted(records(here), key=repr)
    epochs = [one[0] for one in records(run)]
    assert epochs == sorted(epochs)
    assert pictures(run) == pictures(here)
    assert len(pictures(run)) == 6
    assert best_epoch(run) == best_epoch(here)
    # the last score was waited for, and is in its checkpoint
    assert set(read_late_scores(run / "checkpoints")) <= {1, 2, 3, 4}
    assert None not in late_rows(run)
    assert owed_files(run) == []
