import json
from pathlib import Path
from typing import Any

import pytest

from metta.errors import ConfigError
from metta.files import sha256_of
from metta.train.layers import resolve
from metta.train.parsing.origins import COMMAND_LINE, Origin
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

LR = "trainer.optimizer.learning_rate"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("seed: 3\ntrainer:\n  optimizer:\n    lr: 5e-3\n")
    Path("b.yaml").write_text("# second\nlearning_rate: 6e-3\n")
    return [Path("a.yaml"), Path("b.yaml")]


def test_the_last_layer_counts_when_several_set_one_value(files: list[Path]) -> None:
    assert resolve("cartpole").config.trainer.optimizer.learning_rate == 2e-3
    assert resolve("cartpole", files[:1]).config.trainer.optimizer.learning_rate == 5e-3
    assert resolve("cartpole", files).config.trainer.optimizer.learning_rate == 6e-3
    assert resolve("cartpole", files[::-1]).config.trainer.optimizer.learning_rate == 5e-3
    config = resolve("cartpole", files, ["lr=7e-3"]).config
    assert config.trainer.optimizer.learning_rate == 7e-3
    assert (config.trainer.seed, config.trainer.ppo.gamma) == (3, 0.98)


def test_each_value_knows_its_layer_when_layers_are_resolved(files: list[Path]) -> None:
    origins = resolve("cartpole", files, ["n_epochs=2"]).origins
    assert str(origins[LR]) == "b.yaml:2"
    assert str(origins["trainer.seed"]) == "a.yaml:1"
    assert str(origins["trainer.ppo.gamma"]) == "preset cartpole"
    assert str(origins["trainer.ppo.update_epochs"]) == "command line"
    assert str(origins["trainer.ppo.vf_coef"]) == "default"
    assert resolve("Odd-v9").origins["trainer.curriculum.env"] == COMMAND_LINE
    base = apply_settings(TrainingConfig(), {"seed": 9})
    assert resolve(base).origins["trainer.seed"] == Origin("base config")


def test_the_chain_is_shown_when_a_setting_is_explained(files: list[Path]) -> None:
    assert resolve("cartpole", files, ["lr=7e-3"]).explain("lr").splitlines() == [
        f"{LR} = 0.007",
        "  set by: command line",
        "  overrides: '6e-3' (b.yaml:2)",
        "  overrides: '5e-3' (a.yaml:4)",
        "  overrides: 0.002 (preset cartpole)",
        "  overrides: 0.00025 (default)",
        "  meaning: Step size at the start of the run.",
        "  allowed: a number above 0",
        "  default: 0.00025",
    ]


def test_all_settings_of_a_group_are_shown_when_it_is_explained() -> None:
    text = resolve().explain("wandb")
    heads = [line.partition(" =")[0] for line in text.splitlines() if not line.startswith(" ")]
    names = [f"trainer.logging.wandb.{name}" for name in ("mode", "project", "entity", "tags")]
    assert [head for head in heads if head] == names
    assert resolve().explain("").count("set by:") == len(resolve().history)


def test_the_nearest_name_is_given_when_an_unknown_one_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'gama'; did you mean 'gamma'"):
        resolve().explain("gama")


def test_provenance_is_json_when_it_is_written(files: list[Path]) -> None:
    settings = ["tags=[x]", "env_kwargs={a: [1]}"]
    data = json.loads(json.dumps(resolve("cartpole", files, settings).provenance()))
    assert data["settings"][LR] == {
        "value": 0.006,
        "origin": "b.yaml:2",
        "overrides": [
            {"value": "5e-3", "origin": "a.yaml:4"},
            {"value": 0.002, "origin": "preset cartpole"},
            {"value": 0.00025, "origin": "default"},
        ],
    }
    assert data["settings"]["trainer.logging.wandb.tags"]["value"] == ["x"]
    assert data["files"] == {str(path): sha256_of(path) for path in files}


def test_both_spellings_are_named_when_one_layer_sets_a_path_twice(files: list[Path]) -> None:
    files[0].write_text("lr: 1\ntrainer: {optimizer: {learning_rate: 2}}\n")
    with pytest.raises(ConfigError) as caught:
        resolve(None, files)
    assert "'lr' and 'trainer.optimizer.learning_rate' both set" in str(caught.value)
    assert "(a.yaml:1 and a.yaml:2)" in str(caught.value)
    with pytest.raises(ConfigError, match="'lr' and 'learning_rate' both set"):
        resolve(None, [], ["lr=1", "learning_rate=2"])


def test_the_last_one_counts_when_a_command_line_repeats_a_name() -> None:
    assert resolve(None, [], ["clip-coef=1", "clip_coef=2"]).config.trainer.ppo.clip_coef == 2.0


def test_mappings_work_too_when_overrides_are_values() -> None:
    resolved = resolve(None, [], {"trainer": {"ppo": {"gamma": 0.5}}, "lr": 1e-3})
    assert resolved.config.trainer.ppo.gamma == 0.5
    assert str(resolved.origins["trainer.ppo.gamma"]) == "command line"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["minibatch_size=100"], "trainer.ppo.minibatch_size (command line): minibatch_size=100 does not "
         "divide the batch of 1024 (horizon 128 x 8 rows); try minibatch_size=64 or 128"),
        (["core=lstm", "bptt_horizon=24"], "trainer.rollout.bptt_horizon (command line): bptt_horizon=24 "
         "does not divide the horizon of 128; try bptt_horizon=16 or 32"),
        (["agent_name=gru", "batch_size=8"], "in segments of 16 steps; try minibatch_size=16"),
        (["num_workers=9"], "try num_workers=8 or num_envs=9"),
        (["num_groups=2", "num_workers=8"], "try num_workers=4 or num_envs=16"),
        (["n_steps=1e15", "n_envs=1e15", "core=lstm"], "fits no machine"),
        (["num_envs=9", "num_groups=2"], "trainer.rollout.num_envs (command line): num_envs=9"),
    ],
)  # fmt: skip
def test_legal_sizes_are_named_when_sizes_do_not_fit(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, [], settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("settings", [["bptt_horizon=24"], ["core=lstm", "bptt_horizon=500"],
                                      ["minibatch_size=100", "auto_batch=on"]])  # fmt: skip
def test_sizes_are_legal_when_they_do_not_matter(settings: list[str]) -> None:
    resolve(None, [], settings)


def test_sizes_are_left_to_the_trainer_when_the_environment_may_be_any(tmp_path: Path) -> None:
    config = TrainingConfig.from_dict({"minibatch_size": 100, "core": "lstm", "bptt_horizon": 24})
    assert config.trainer.ppo.minibatch_size == 100
    assert TrainingConfig.from_yaml(config.to_yaml(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": {"name": "simple_cnn"}, "trainer": {"total_timesteps": 10_000_000}},
        {"agent": {"agent_name": "simple_cnn"}, "trainer": {"total_steps": "10e6"}},
        {"agent.name": "simple_cnn", "total_timesteps": 1e7},
    ],
)
def test_the_same_config_comes_out_when_the_form_differs(settings: dict[str, Any]) -> None:
    config = TrainingConfig.from_dict(settings)
    assert (config.agent.name, config.trainer.total_timesteps) == ("simple_cnn", 10_000_000)


def test_a_switch_becomes_the_word_again_when_another_reader_has_made_it_one() -> None:
    assert TrainingConfig.from_dict({"wandb": {"mode": False}}) == TrainingConfig()


@pytest.mark.parametrize("settings", [3, None, [], "lr=1"])
def test_a_config_error_is_raised_when_settings_are_no_mapping(settings: Any) -> None:
    with pytest.raises(ConfigError, match=r"config: found .*; allowed is a mapping of settings"):
        TrainingConfig.from_dict(settings)


def test_the_place_is_named_when_a_free_value_cannot_be_written(tmp_path: Path) -> None:
    holds_itself: dict[str, Any] = {}
    holds_itself["again"] = holds_itself
    for value, place in (
        (object(), "env_kwargs.a.0"),
        ({1: 2}, "env_kwargs.a.0"),
        (holds_itself, "deep"),
    ):
        config = TrainingConfig.from_dict({"env_kwargs": {"a": [value]}})
        with pytest.raises(ConfigError, match=place):
            config.to_yaml(tmp_path / "config.yaml")
    assert list(tmp_path.iterdir()) == []
