from pathlib import Path

import pytest

from metta.cli.arguments import join_settings, resolve_arguments, sort_arguments
from metta.errors import ConfigError
from metta.train.settings import ALIASES, setting_paths


@pytest.mark.parametrize(
    ("arguments", "joined"),
    [
        (["--ppo.clip-coef", "0.1", "x"], ["ppo.clip_coef=0.1", "x"]),
        (["--ppo.clip-coef=0.1"], ["ppo.clip_coef=0.1"]),
        (["--ppo.target-kl", "-1"], ["ppo.target_kl=-1"]),
        (["--wandb.project="], ["wandb.project="]),
        (["--wandb.project=a-b=c"], ["wandb.project=a-b=c"]),
        (["--run", "a.b", "--dry-run"], ["--run", "a.b", "--dry-run"]),
        (["--output=a.b"], ["--output=a.b"]),
        (["--lr", "1e-3", "x"], ["lr=1e-3", "x"]),
        (["--n-steps=64"], ["n_steps=64"]),
        (["--seed", "3"], ["--seed", "3"]),
        (["--anneal-lr", "x", "--norm-adv", "false"], ["anneal_lr=true", "x", "norm_adv=false"]),
        (["--no-anneal-lr", "--no-norm-adv"], ["anneal_lr=false", "norm_adv=false"]),
        (["--verbose", "2"], ["verbose=2"]),
        (["--tensorboard"], ["tensorboard=true"]),
        (["--unknown", "1"], ["--unknown", "1"]),
    ],
)
def test_dotted_options_become_settings_when_they_are_joined(
    arguments: list[str], joined: list[str]
) -> None:
    assert join_settings(arguments, ["--run", "--output", "--seed"]) == joined


def test_every_setting_is_an_option_too() -> None:
    for name in setting_paths():
        assert join_settings([f"--{name.replace('_', '-')}", "1"]) == [f"{name}=1"]


def test_words_are_told_apart_when_they_are_sorted() -> None:
    words = ["a.yaml", "cartpole", "lr=1", "b/c.yml", "experiment_name=x.yaml"]
    preset, files, settings = sort_arguments(words)
    assert (preset, files) == ("cartpole", [Path("a.yaml"), Path("b/c.yml")])
    assert settings == ["lr=1", "experiment_name=x.yaml"]
    assert sort_arguments(["runs/a=1/b.yaml"]).files == [Path("runs/a=1/b.yaml")]


@pytest.mark.parametrize("words", [["cartpole", "fast"], [""]])
def test_a_word_is_refused_when_it_is_nothing_known(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"is not a setting; write NAME=VALUE|neither a setting"):
        sort_arguments(words)


def test_extra_settings_win_when_words_are_resolved() -> None:
    assert resolve_arguments(["seed=1"], ["seed=2"]).config.trainer.seed == 2


def test_no_preset_is_assumed_when_the_environment_goes_by_another_name() -> None:
    for name, path in [*setting_paths().items(), *ALIASES.items()]:
        if path == "trainer.curriculum.env":
            resolved = resolve_arguments([f"{name}=Acrobot-v1"])
            assert str(resolved.origins["experiment_name"]) == "default", name
