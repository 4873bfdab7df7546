"""A run of two ranks is one run for every command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.errors import ConfigError
from metta.rl.training_state import On, PolicyTracker, StatsTracker, TrainerState, fields_on
from metta.testing.certification import certify
from metta.train.train_config import TrainingConfig
from tests.ranks.test_ranks_together import finished, launched

pytestmark = pytest.mark.timeout(240)
SMALL = ["CartPole-v1", "num_envs=4", "num_shards=2", "horizon=16", "num_minibatches=1",
         "update_epochs=1", "hidden_size=8", "recipe=none", "eval_episodes=1", "final_replay=false",
         "checkpoint_interval=1", "system.num_processes=2", "system.rank_timeout_seconds=60"]  # fmt: skip


def called(*words: str) -> "subprocess.CompletedProcess[str]":
    """A command of its own: it becomes torchrun."""
    command = [sys.executable, "-m", "metta", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_of_two_ranks_has_one_folder_and_says_how_it_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--runs", str(tmp_path)]
    done = called("train", *SMALL, "total_timesteps=128", "--run", "two", *place)
    assert done.stderr.count("metta: 2 shards on 2 ranks\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    assert main(["runs", *place]) == 0
    assert main(["runs", "show", "two", *place]) == 0
    shown = capsys.readouterr().out
    assert "done" in shown
    assert "computed as: 2 shards on 2 ranks" in shown
    assert "timing_per_epoch/reduce" in shown
    assert main(["inspect", "two", *place, "--json"]) == 0
    layout = json.loads(capsys.readouterr().out)["conditions"]["layout"]
    assert (layout["num_ranks"], layout["limits"]) == (2, [])
    starts = [
        json.loads(line)["payload"]["attributes"]
        for line in (tmp_path / "two" / "events.jsonl").read_text().splitlines()
        if '"run_start"' in line
    ]
    assert [start["layout"] for start in starts] == ["2 shards on 2 ranks"]


def test_a_profile_of_two_ranks_is_printed_once_and_has_the_time_of_reducing(
    tmp_path: Path,
) -> None:
    out = ["--epochs", "1", "--warmup", "1", "--out", str(tmp_path / "out")]
    said = called("profile", *SMALL, *out).stdout
    assert said.count("flame graph, stacks and trace are in") == 1
    found = json.loads((tmp_path / "out" / "phases.json").read_text())
    assert list(found["phases"]) == [
        "environment", "inference", "transfer", "reduce", "learn", "hooks", "rest",
    ]  # fmt: skip
    assert found["phases"]["reduce"] > 0
    assert (found["epochs"], found["steps"]) == (1, 64)  # of the run, not of the rank


def test_fields_hold_on_ranks_what_their_types_say(tmp_path: Path) -> None:
    code, out, err = finished(launched(2, "tests.ranks.fields", str(tmp_path / "run")))
    assert code == 0, err
    first, other = json.loads(out)
    for container in (TrainerState, StatsTracker, PolicyTracker):
        own, others = first[container.__name__], other[container.__name__]
        differing = {name for name in own if own[name] != others[name]}
        kinds = fields_on(container)
        assert {name for name in differing if kinds[name] is On.EVERY_RANK} == set()
    # what is said to differ does, as far as this run can show it
    assert first["TrainerState"]["shared"] != other["TrainerState"]["shared"]
    assert first["TrainerState"]["eval_scores"] != other["TrainerState"]["eval_scores"]
    assert first["PolicyTracker"] != other["PolicyTracker"]


@pytest.mark.slow
def test_a_set_up_of_two_ranks_is_certified() -> None:
    with pytest.raises(ConfigError):
        TrainingConfig.from_dict({"num_shards": 3, "num_processes": 2, "num_envs": 6})
    settings = {"num_envs": 4, "num_shards": 2, "horizon": 16, "hidden_size": 8, "recipe": "none"}
    config = TrainingConfig.from_dict(
        {**settings, "num_processes": 2, "rank_timeout_seconds": 60.0}
    )
    certificate = certify(config, epochs=2, kills=1)
    assert certificate.is_exact
    assert certificate.support.endswith("computed as: 2 shards on 2 ranks")
    assert {"collector/0", "collector/1", "policy"} <= set(certificate.components)
    assert certificate.kills != []
