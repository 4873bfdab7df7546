from collections.abc import Callable
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.train.parsing.yaml_text import parse_yaml
from metta.train.presets import PRESETS
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", PRESETS)
def test_the_printed_config_loads_again_when_it_is_saved(name: str, shown: Shown) -> None:
    text = shown("config", name, "seed=9")
    config = TrainingConfig.from_dict(parse_yaml(text, "text"))
    assert config == apply_settings(PRESETS[name](), {"seed": 9})


def test_a_file_is_written_when_it_is_asked_for(tmp_path: Path, shown: Shown) -> None:
    path = tmp_path / "new" / "my.yaml"
    assert shown("config", "pendulum", "--output", str(path)) == f"wrote {path}\n"
    assert TrainingConfig.from_yaml(path) == PRESETS["pendulum"]()


def test_the_error_is_explained_when_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["config", "--output", str(tmp_path / "file" / "my.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_every_setting_is_shown_with_its_origin_when_asked_for(
    tmp_path: Path, shown: Shown
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("\nseed: 4\n")
    text = shown("config", "acrobot", str(file), "gamma=0.5", "--origins")
    lines = {line.partition("  ")[0]: line.rpartition("# ")[2] for line in text.splitlines()}
    assert lines["trainer.ppo.gamma = 0.5"] == "command line"
    assert lines["trainer.seed = 4"] == f"{file}:2"
    assert lines["trainer.curriculum.env = Acrobot-v1"] == "preset acrobot"
    assert lines["agent.normalize_observations = True"] == "preset acrobot"
    assert lines["trainer.ppo.vf_coef = 0.5"] == "default"


def test_any_name_works_when_a_setting_is_explained(shown: Shown) -> None:
    text = shown("config", "--explain", "lr", "--optimizer.learning-rate", "0.5")
    assert text.splitlines()[:3] == [
        "trainer.optimizer.learning_rate = 0.5",
        "  set by: command line",
        "  overrides: 0.003 (preset grid)",
    ]


def test_fields_and_groups_below_are_listed_when_help_is_asked_for(shown: Shown) -> None:
    text = shown("config", "--help-for", "trainer.logging")
    assert (
        "trainer.logging.csv  (default: True)\n    true or false\n    Write `metrics.csv`." in text
    )
    assert "trainer.logging.wandb: Weights & Biases." in text
    assert "wandb.mode" not in text
    assert "Discount per step." in shown("config", "--help-for", "gamma")
    assert "trainer: Everything" in shown("config", "--help-for", "all")


def test_the_groups_are_named_when_help_is_asked_for_an_unknown_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "--help-for", "trainer.pppo"]) == 2
    assert "unknown group 'trainer.pppo'; did you mean 'trainer.ppo'" in capsys.readouterr().err


def test_every_preset_has_a_line_when_presets_are_listed(shown: Shown) -> None:
    lines = shown("presets").splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert all(len(line.split()) > 3 for line in lines)


def test_the_default_is_explained_when_no_run_is_described(shown: Shown) -> None:
    default = TrainingConfig().trainer.optimizer.learning_rate
    text = shown("config", "--explain", "learning_rate")
    assert text.startswith(f"trainer.optimizer.learning_rate = {default}")
    assert "preset" not in text
