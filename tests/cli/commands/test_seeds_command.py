"""`metta seeds` from the command line: one configuration, several seeds, one table and one picture."""

import json
from pathlib import Path

import numpy as np
import pytest

from metta.cli.main import main
from metta.sim.statistics import estimate, mean_of_means
from tests.children import TINY

WORDS = ["CartPole-v1", *TINY[:-2], "eval_episodes=4", "eval_envs=4", "total_timesteps=96"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "how many seeds?"),
        (["cartpole"], "first comes the number of seeds"),
        (["1", "cartpole"], "first comes the number of seeds, 2 or more"),
        (["5000", "cartpole"], "--seeds 5000: give a whole number from 1 to 1,000"),
        (["3", "cartpole", "lr=1e-4..1e-3"], "has several values"),
        (["3", "cartpole", "lr=1e-4,1e-3"], "has several values"),
        (["3", "cartpole", "gama=0.9"], "unknown setting 'gama'"),
        (["3", "cartpole", "eval_episodes=0"], "give eval_episodes=20"),
        (["3", "cartpole", "--workers", "-1"], "--workers -1"),
        (["resume"], "metta seeds resume NAME"),
    ],
)
def test_it_is_refused_before_any_work_when_the_input_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["seeds", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_seeds_end_with_a_table_and_a_picture_when_all_are_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--runs", str(tmp_path)]
    words = [*WORDS, "seed=5", "--name", "s", "--workers", "1", *place]
    assert main(["seeds", "2", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sweep s: 1 trial of 2 runs, for a high score; 1 worker; database")
    head = next(place for place, line in enumerate(lines) if line.startswith("seed "))
    assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["5", "6"]
    assert lines[-2].endswith(f"metta compare s OTHER --runs {tmp_path}")
    assert (tmp_path / "s" / "seeds.png").read_bytes()[:4] == b"\x89PNG"

    # again: nothing is trained, the numbers are those of the runs
    assert main(["seeds", "resume", "s", "--json", *place]) == 0
    found = json.loads(capsys.readouterr().out)
    scores = np.array([one["score"] for one in found["seeds"]])
    assert found["mean"] == estimate(mean_of_means, [scores]).to_dict()
    assert [one["agent_step"] for one in found["seeds"]] == [96] * 2
    assert main(["runs", "s/t001-s6", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == scores[1]
    capsys.readouterr()
    assert main(["compare", "s", "one=s/t001-s5", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == {"s": 2, "one": 1}

    assert main(["sweep", "resume", "s", *place]) == 2
    assert "continue it with: metta seeds resume s" in capsys.readouterr().err
