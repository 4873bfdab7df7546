"""`metta compare`: which runs are better, from their event logs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta.cli.commands.compare import read_groups
from metta.cli.main import main
from metta.errors import ConfigError
from metta.loggers import EventLog, StatsClient
from metta.runs.comparison import ALL, Evaluation, compare_groups, last_evaluation
from metta.seeding import numpy_generator
from metta.train.train_config import TrainingConfig


def make_run(folder: Path, *scores: dict[str, Any], episodes: bool = True) -> Path:
    """A run with an evaluation per element: simulation -> returns of its episodes."""
    folder.mkdir(parents=True)
    TrainingConfig().to_yaml(folder / "config.yaml")
    with EventLog(folder / "events.jsonl") as log:
        client = StatsClient(log)
        client.create_run(folder.name)
        for epoch, returns in enumerate(scores, 1):
            payload: dict[str, Any] = {
                "simulation_scores": {name: float(np.mean(one)) for name, one in returns.items()}
            }
            if episodes:
                payload["episodes"] = {
                    name: {"returns": list(one)} for name, one in returns.items()
                }
            client.record_evaluation(epoch=epoch, agent_step=10 * epoch, scores=payload)
    return folder


def returns_of(mean: float, *, seed: int = 1, count: int = 20) -> list[float]:
    drawn: list[float] = numpy_generator(seed, "returns").normal(mean, 1.0, count).tolist()
    return drawn


def compared(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    assert main(["compare", *words, "--output", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_better_run_is_named_when_two_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good", {"a/b": returns_of(0.0)}, {"a/b": returns_of(5.0, seed=2)})
    make_run(tmp_path / "bad", {"a/b": returns_of(3.0)})
    assert main(["compare", "bad", "good", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "simulation",
        "group",
        "runs",
        "episodes",
        *("mean", "95", "%", "interval"),
        *("IQM", "95", "%", "interval"),
    ]
    returns = np.sort(returns_of(5.0, seed=2))
    words = lines[2].split()
    assert words[:5] == ["a/b", "good", "1", "20", f"{returns.mean():.3f}"]
    assert words[8] == f"{returns[5:15].mean():.3f}"
    assert lines[-1] == "best by the lower bound of its interval: good"
    assert "they hold for these policies, not for other seeds" in lines[-3]
    assert "metta eval" in lines[-2]
    found = compared(capsys, tmp_path, "bad", "good")
    there, back = found["improvements"]
    assert (there["better"], there["than"]) == ("bad", "good")
    assert there["high"] < 0.5 < back["low"]
    assert there["value"] + back["value"] == pytest.approx(1.0)
    assert (found["unit"], found["best"], found["missing"]) == ("episodes", "good", None)


def test_it_is_said_when_the_best_cannot_be_told_from_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "same"):
        make_run(tmp_path / name, {"a/b": returns_of(3.0)})
    make_run(tmp_path / "bad", {"a/b": returns_of(-3.0)})
    assert main(["compare", "one", "same", "bad", "--output", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    expected = "best by the lower bound of its interval: one, but that may be chance beside same"
    assert last == expected


def test_runs_are_what_is_drawn_when_groups_have_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few episodes do not matter then, but runs do."""
    means = {"adam": [5.0, 6.0, 7.0, 8.0], "sgd": [1.0, 9.0, 2.0, 3.0]}
    for name, scores in means.items():
        for number, mean in enumerate(scores):
            make_run(tmp_path / f"{name}{number}", {"a/b": [mean, mean]}, episodes=False)
    words = [f"{name}={','.join(f'{name}{number}' for number in range(4))}" for name in means]
    found = compared(capsys, tmp_path, *words)
    assert (found["unit"], found["runs"]) == ("runs", {"adam": 4, "sgd": 4})
    by_group = found["interquartile_means"]["a/b"]
    assert by_group["adam"]["value"] == 6.5  # 5 | 6 7 | 8
    assert by_group["sgd"]["value"] == 2.5  # 1 | 2 3 | 9
    assert found["improvements"][0]["value"] == 12 / 16  # all but the run with 9 are below
    assert found["best"] == "adam"


def test_a_folder_is_a_group_of_its_runs_when_metta_seeds_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mean in (("base", 1.0), ("other", 2.0)):
        for seed in (1, 2, 10):
            make_run(tmp_path / name / f"t001-s{seed}", {"a/b": returns_of(mean, seed=seed)})
    found = compared(capsys, tmp_path, "base", "other")
    assert (found["unit"], found["runs"]) == ("runs", {"base": 3, "other": 3})
    group = f"x={','.join(f'base/t001-s{seed}' for seed in (1, 10, 2))}"
    again = compared(capsys, tmp_path, group, "other")
    key = "interquartile_means"
    assert again[key]["a/b"]["x"] == found[key]["a/b"]["base"]
    assert main(["compare", "base", "other", "--output", str(tmp_path)]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.split()[:5] == ["simulation", "group", "runs", "scores", "mean"]
    make_run(tmp_path / "base" / "t002-s1", {"a/b": returns_of(1.0)})
    assert main(["compare", "base", "other", "--output", str(tmp_path)]) == 2
    assert "'base' is a sweep, and its trials differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["x=a,b", "y=c,d"], "x has 2, y has 2; at least 3 runs of each are needed"),
        (["a", "c"], "a in s/t has 4, c in s/t has 4; at least 10 episodes of each are needed"),
        (["a", "y=c,d"], "a in s/t has 4, y in s/t has 8; at least 10 episodes of each"),
    ],
)
def test_what_is_needed_is_said_when_there_is_not_enough_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], needed: str
) -> None:
    for number, name in enumerate("abcd"):
        make_run(tmp_path / name, {"s/t": returns_of(1.0, seed=number, count=4)})
    assert main(["compare", *words, "--output", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"not enough data: {needed}")
    assert compared(capsys, tmp_path, *words)["best"] is None


def test_simulations_count_alike_when_their_scales_differ() -> None:
    """`steady` is much better in one of small numbers, `large` a little in one of large ones."""
    steady = Evaluation(1, {"a/small": 0.0, "b/large": 0.0}, {
        "a/small": returns_of(9.0), "b/large": returns_of(1000.0)})  # fmt: skip
    large = Evaluation(1, {"a/small": 0.0, "b/large": 0.0}, {
        "a/small": returns_of(0.0), "b/large": returns_of(1000.5)})  # fmt: skip
    found = compare_groups({"large": [large], "steady": [steady]})
    assert list(found.estimates) == ["a/small", "b/large", ALL]
    assert 0.0 <= found.estimates[ALL]["large"].low <= found.estimates[ALL]["steady"].high <= 1.0
    assert found.best == "steady"


def test_only_common_simulations_count_when_runs_have_different_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", {"x/a": returns_of(1.0), "x/b": returns_of(1.0)})
    make_run(tmp_path / "b", {"x/b": returns_of(2.0), "x/c": returns_of(2.0)})
    found = compared(capsys, tmp_path, "a", "b")
    assert (found["simulations"], found["left_out"]) == (["x/b"], ["x/a", "x/c"])
    make_run(tmp_path / "c", {"y/a": returns_of(1.0)})
    assert main(["compare", "a", "c", "--output", str(tmp_path)]) == 2
    assert "no simulation in common; they have x/a, x/b, y/a" in capsys.readouterr().err


def test_runs_of_strangers_steer_no_terminal_when_they_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil, count = "x/\x1b[2J", 4
    for name in ("a", "b"):
        returns = {evil: returns_of(1.0, count=count), f"{evil}{name}": returns_of(1.0)}
        make_run(tmp_path / name, returns)
    assert main(["compare", "a", "b", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    for line in (r"left out: x/\x1b[2Ja, x/\x1b[2Jb", r"not enough data: a in x/\x1b[2J has 4"):
        assert line in shown


def test_lost_epochs_do_not_count_when_a_run_went_on_from_an_older_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", *({"x/y": [float(epoch)]} for epoch in range(1, 6)))
    with EventLog(folder / "events.jsonl") as log:
        client = StatsClient(log)
        client.create_run("a", from_epoch=3)
    found = last_evaluation(folder / "events.jsonl")
    assert found is not None
    assert (found.epoch, found.scores) == (3, {"x/y": 3.0})
    with EventLog(folder / "events.jsonl") as log:
        client = StatsClient(log)
        client.record_evaluation(epoch=4, agent_step=1, scores={"x/y": 44.0})
        # late news of an epoch that was judged in the background
        client.record_evaluation(epoch=2, agent_step=1, scores={"x/y": 22.0})
        client.record_evaluation(epoch=4, agent_step=1, scores={"x/y": 45.0, "x/z": None})
    found = last_evaluation(folder / "events.jsonl")
    assert found == Evaluation(4, {"x/y": 45.0}, {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "nothing to compare"),
        (["a", "a"], "'a' is given twice"),
        (["a", "b="], "'b=' names no runs"),
        (["a", "=b"], "'=b' names no runs"),
        (["a", "b=c,c"], "has the same run twice"),
    ],
)
def test_a_config_error_is_raised_when_groups_are_not_clear(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_groups(words, Path("runs"))


def test_the_run_is_named_when_it_was_never_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", {"x/a": returns_of(1.0)})
    make_run(tmp_path / "b")
    assert main(["compare", "a", "b", "--output", str(tmp_path)]) == 2
    assert "the run 'b' has no evaluation in its event log" in capsys.readouterr().err
    assert main(["compare", "a", "nothing", "--output", str(tmp_path)]) == 2
    assert "there is no run 'nothing'" in capsys.readouterr().err


def test_real_runs_can_be_compared_when_training_evaluated_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["num_envs=2", "horizon=8", "total_timesteps=32", "hidden_size=8", "verbose=false",
                "final_replay=false"]  # fmt: skip
    for seed in (1, 2):
        words = ["train", "cartpole", *settings, "eval_episodes=12", f"seed={seed}"]
        assert main([*words, "--run", f"run{seed}", "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    found = compared(capsys, tmp_path, "run1", "run2")
    assert found["simulations"] == ["training/CartPole-v1"]
    counts = [one["count"] for one in found["interquartile_means"]["training/CartPole-v1"].values()]
    assert counts == [12, 12]
    assert found["best"] in ("run1", "run2")
