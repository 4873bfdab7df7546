"""A run whose shards are collected elsewhere is one run for every command, and says where they are."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from metta import TrainerHook
from metta.cli.main import main
from metta.loggers.events.log import read_events
from metta.rl.remote.remote_collector import RemoteCollector, split_wait
from tests.cli.test_documented_metrics import IN_SEVERAL_PROCESSES, PAGE
from tests.ranks.kinds import trainer_of

SMALL = ["CartPole-v1", "num_envs=4", "num_shards=2", "horizon=16", "num_minibatches=1",
         "update_epochs=1", "hidden_size=8", "recipe=none", "eval_episodes=1", "final_replay=false",
         "checkpoint_interval=1"]  # fmt: skip
AHEAD = ["collect.kind=process", "collect.overlap=true", "collect.num_actors=1"]
LAYOUT = "2 shards, 1 collecting process, one update ahead"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = [*SMALL, *AHEAD, "total_timesteps=192", "--run", "ahead", "--runs", str(folder)]
    assert main(["train", *words]) == 0
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_commands_show_where_shards_were_collected(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"computed as: {LAYOUT}" in shown(capsys, "runs", "show", "ahead", "--runs", str(runs))
    found = json.loads(shown(capsys, "inspect", "ahead", "--runs", str(runs), "--json"))
    assert found["conditions"]["layout"] == {
        "num_shards": 2, "num_ranks": 1, "kind": "process", "num_collecting": 1, "is_ahead": True,
        "limits": [],
    }  # fmt: skip
    assert len(list(runs.iterdir())) == 1


def test_a_run_says_at_its_start_where_shards_are_collected_and_resumes_anywhere(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["collect.kind=here", "collect.num_actors=0", "--runs", str(runs)]
    assert main(["resume", "ahead", "total_timesteps=256", *here]) == 0
    assert "metta: 2 shards, one update ahead, in turn\n" in capsys.readouterr().err


def test_records_have_the_times_of_collecting_elsewhere(runs: Path) -> None:
    with (runs / "ahead" / "metrics.csv").open() as file:
        row = next(iter(csv.DictReader(file)))
    page = PAGE.read_text()
    for name in IN_SEVERAL_PROCESSES:
        assert f"| `{name}` |" in page
        assert (name in row) == (not name.endswith("reduce"))  # that is of ranks


@pytest.mark.parametrize(
    ("blocked", "busiest", "split"),
    [
        (5.0, 3.0, {"collect": 3.0, "wait": 2.0, "collect_ahead": 0.0}),
        (1.0, 4.0, {"collect": 1.0, "wait": 0.0, "collect_ahead": 3.0}),
        (0.0, 4.0, {"collect": 0.0, "wait": 0.0, "collect_ahead": 4.0}),
    ],
)
def test_waiting_is_split_by_what_others_did(
    blocked: float, busiest: float, split: dict[str, float]
) -> None:
    assert split_wait(blocked, busiest, is_ahead=True) == split
    split = {name: seconds for name, seconds in split.items() if name != "collect_ahead"}
    assert split_wait(blocked, busiest, is_ahead=False) == split


def test_a_profile_splits_the_time_of_collecting_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = [*SMALL, "collect.overlap=true", "--epochs", "1", "--warmup", "1", "--out", out]
    said = shown(capsys, "profile", *words)
    assert "2 shards, one update ahead, in turn" in said
    phases = json.loads((tmp_path / "out" / "phases.json").read_text())["phases"]
    assert list(phases) == [
        "collect", "wait", "transfer", "advantages and statistics", "learn", "hooks", "rest",
    ]  # fmt: skip


class Killing(TrainerHook):
    """Ends a collecting process in the first epoch."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def on_rollout_start(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 0:
            os.kill(self.pool.pids[1], signal.SIGKILL)


def test_a_restart_is_an_event_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"collect.kind": "process", "collect.num_actors": 2, "verbose": True}
    with trainer_of("mlp", tmp_path / "killed", 2, **settings) as trainer:
        assert trainer.components is not None
        collector = trainer.components.collector
        assert isinstance(collector, RemoteCollector)
        trainer.add_hook(Killing(collector.pool))
        trainer.train()
    said = capsys.readouterr().err
    assert "another one collects in place 1 from now on" in said
    events = list(read_events(tmp_path / "killed" / "events.jsonl"))
    (payload,) = [e.payload for e in events if e.kind == "collector_restart"]
    assert payload["place"] == 1
    assert payload["reason"].startswith("collecting process 1 (pid ")
    about = shown(capsys, "runs", "show", "killed", "--runs", str(tmp_path))
    assert (
        "a collecting process was replaced once, the last time because collecting process 1"
        in about
    )
