"""The page of metrics, compared with what `metta train` writes."""

import csv
import json
import re
from pathlib import Path

import pytest

import metta
from metta.cli.main import main

PAGE = Path(metta.__file__).parents[1] / "docs" / "metrics.md"
SMALL = ["num_envs=2", "n_steps=8", "n_epochs=1", "num_minibatches=1", "hidden_size=8"]
IN_SEVERAL_PROCESSES = (
    "experience/policy_lag",
    "timing_per_epoch/collect",
    "timing_per_epoch/wait",
    "timing_per_epoch/transfer",
    "timing_per_epoch/collect_ahead",
    "timing_per_epoch/reduce",
)
ELSEWHERE = (
    "hyperparameters/",  # no row has them: they are constants
    "losses/custom/",  # of custom losses
    "env_info/",  # of environments that report numbers
    "env_curriculum/",  # of several tasks
    "env_<group>/",
    "monitor/gpu_",
    *IN_SEVERAL_PROCESSES,
)


def documented() -> set[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    names = {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
    return {name for name in names if not name.startswith(ELSEWHERE)}


def is_in(name: str, keys: set[str]) -> bool:
    parts = re.split(r"(<\w+>)", name)
    pattern = "".join(r"[^/]+" if part.startswith("<") else re.escape(part) for part in parts)
    return any(re.fullmatch(pattern, key) for key in keys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    asked = ["total_timesteps=64", "eval_episodes=1", 'env_kwargs={"max_episode_steps": 6}']
    asked += ["grad_stats_interval=1", "weight_stats_interval=1"]
    words = ["train", "cartpole", *SMALL, *asked, "--run", "first", "--output", str(folder)]
    assert main(words) == 0
    return folder / "first"


def test_every_documented_metric_is_an_event_when_a_run_trains(run: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rows = [event["payload"]["metrics"] for event in events if event["kind"] == "metrics"]
    keys = {key for row in rows for key in row}
    assert {name for name in documented() if not is_in(name, keys)} == set()
    assert not any(key.startswith("hyperparameters/") for key in keys)
    assert [event["kind"] for event in events].count("run_start") == 1
    (start,) = (event["payload"] for event in events if event["kind"] == "run_start")
    assert any("gamma" in key for key in json.dumps(start).split('"'))


def test_every_documented_metric_is_a_column_when_a_run_trains(run: Path) -> None:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    keys = {key for row in rows for key, value in row.items() if value not in ("", None)}
    assert {name for name in documented() if not is_in(name, keys)} == set()


def test_advantages_and_returns_are_those_of_each_rollout(run: Path) -> None:
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["experience/returns_mean"]]
    assert len(rows) == 4
    for row in rows:
        found = float(row["experience/returns_mean"]) - float(row["experience/values_mean"])
        assert found == pytest.approx(float(row["experience/advantages_mean"]), abs=1e-5)
