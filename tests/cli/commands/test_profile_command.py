import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.errors import ConfigError
from metta.profiling.profile_run import Profile, profile_run
from metta.train.presets import small_fast_config
from metta.train.settings import apply_settings

TINY = ["num_envs=2", "horizon=16", "total_timesteps=64", "num_minibatches=1", "update_epochs=1"]
FILES = {"flame.svg", "phases.json", "stacks.folded", "trace.json"}


def profile(words: list[str], folder: Path) -> dict:
    assert main(["profile", *words, "--out", str(folder), "--epochs", "2", "--warmup", "1"]) == 0
    return json.loads((folder / "phases.json").read_text())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_written_when_a_preset_is_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = profile(["small_fast", *TINY], tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # no run is left behind
    phases = ("environment", "inference", "transfer", "learn", "hooks", "rest")
    assert tuple(found["phases"]) == phases
    assert all(seconds >= 0 for seconds in found["phases"].values())
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert (found["epochs"], found["steps"]) == (2, 64)
    assert found["peak_rss_mib"] > 1
    ElementTree.fromstring((tmp_path / "out" / "flame.svg").read_text())
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)
    shown = capsys.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines()[1:8]] == [*phases, "whole"]
    assert "1 thread" in shown


def test_the_rollout_is_one_phase_when_environment_and_actor_step_in_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from metta.agent.actors.actor import make_actor
    from metta.agent.factory import make_policy
    from metta.envs.factory import make_vec_env

    env = make_vec_env("metta/cartpole", num_envs=2)
    policy = make_policy(env.observation_space, env.action_space, seed=0)
    if getattr(make_actor("auto", policy, 2), "fused_actor", None) is None:
        pytest.skip("the C kernels were not built, so there is no fused rollout")
    found = profile(["env=metta/cartpole", *TINY], tmp_path)
    assert list(found["phases"]) == [
        "fused rollout (environment + inference)", "learn", "hooks", "rest"
    ]  # fmt: skip
    assert sum(found["shares"].values()) == pytest.approx(1.0)


def test_a_run_is_not_touched_when_it_is_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["small_fast", *TINY, "--eval-episodes", "0", "--run", "first"]
    assert main(["train", *words]) == 0
    before = contents(tmp_path / "runs")
    found = profile(["first"], tmp_path / "out")
    assert found["steps"] == 64
    assert contents(tmp_path / "runs") == before
    about = tmp_path / "runs" / "first" / "run.json"
    about.write_text(json.dumps({"own_policy": "MyNetwork"}))
    assert main(["profile", "first"]) == 2
    assert "has the network MyNetwork" in capsys.readouterr().err


def test_the_driver_of_the_checkpoint_is_profiled_when_the_run_became_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METTA_COMPILE", "1")
    words = ["small_fast", *TINY, "--eval-episodes", "0", "--run", "first"]
    assert main(["train", *words]) == 0
    file = tmp_path / "runs" / "first" / "config.yaml"
    long = file.read_text().replace("total_timesteps: 64", "total_timesteps: 100000000")
    file.write_text(long)  # as `metta resume first total_timesteps=100_000_000` does
    found = profile(["first"], tmp_path / "out")
    assert "1 thread" in found["conditions"]
    assert "eager update" in found["conditions"]
    assert "compil" not in capsys.readouterr().err


def test_sizes_that_were_asked_for_stay_when_a_machine_chooses_the_others(tmp_path: Path) -> None:
    sizes = {"num_envs": 8, "horizon": 128}  # also the defaults
    words = [f"{name}={size}" for name, size in sizes.items()]
    found = profile(["env=CartPole-v1", "auto_batch=true", *words], tmp_path)
    assert found["steps"] == 2 * 8 * 128


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpoel"], "did you mean 'cartpole'?"),
        (["cartpole", "--epochs", "0"], "at least --epochs 1"),
        (["cartpole", "--warmup", "0"], "--warmup 1"),
        (["cartpole", "learning_rat=1"], "did you mean 'learning_rate'?"),
    ],
)
def test_a_wrong_word_is_refused_when_it_is_given(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == 2
    assert message in capsys.readouterr().err


def test_workers_are_told_of_when_environments_are_in_other_processes(tmp_path: Path) -> None:
    settings = dict(setting.split("=") for setting in TINY)
    config = apply_settings(small_fast_config(), {**settings, "num_workers": 1})
    found = profile_run(config, tmp_path, epochs=1, warmup=1)
    assert found.workers_rss_mib > 1
    assert "workers" in found.describe()
    with pytest.raises(ConfigError, match="at least 1 of each"):
        profile_run(config, tmp_path, epochs=0)


def test_rows_add_up_when_they_are_shown() -> None:
    found = Profile({"learn": 3.0, "rest": 1.0}, 2, 1000, "cpu", 100.0, 0.0)
    assert found.rows() == [
        ("phase", "seconds", "share", "us per step"),
        ("learn", "3.000", "75.0%", "3000.00"),
        ("rest", "1.000", "25.0%", "1000.00"),
        ("whole", "4.000", "100.0%", "4000.00"),
    ]
    assert found.describe() == "2 epochs, 1,000 steps, 250 steps/s; cpu; peak 100 MiB"
