"""A run that is not resumed: each interface says what to change in the call that was made."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from metta.cli.main import main
from metta.curriculum import Curriculum
from metta.envs.configured import configured_vec_env
from metta.errors import ConfigError, InexactResumeError, MettaWarning, StateError
from metta.rl.functional_trainer import create_training_components, functional_training_loop
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.conditions import machine_of
from metta.rl.trainer import train
from metta.store import PolicyStore, load_weights
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "num_envs": 2, "horizon": 8, "num_minibatches": 1, "update_epochs": 1,
    "hidden_size": 8, "eval_episodes": 0, "checkpoint_interval": 1, "total_timesteps": 32,
    "verbose": False, "monitor_seconds": 0,
}  # fmt: skip


def config_of(**settings: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **settings})


def ppo_trainer(policy: nn.Module | None = None, **settings: Any) -> PPOTrainer:
    options = {**SMALL, **settings}
    if "checkpoint_dir" not in options:
        del options["checkpoint_interval"]
    return PPOTrainer(policy, options.pop("env"), **options)


def run_in_folder(folder: Path, **settings: Any) -> None:
    train(folder, config_of(**settings))


def run_of_ppo_trainer(folder: Path, **settings: Any) -> None:
    with ppo_trainer(checkpoint_dir=folder, **settings) as trainer:
        trainer.train()


def run_that_is_loaded(folder: Path, **settings: Any) -> None:
    with ppo_trainer(**settings) as trainer:
        if folder.exists():
            trainer.load(folder)
        trainer.train(32)
        trainer.save(folder)


def run_of_policy_store(folder: Path, **settings: Any) -> None:
    config = config_of(**settings).trainer
    functional_training_loop(config, policy_store=PolicyStore(folder))


Interface = Callable[..., None]
INTERFACES = {
    run_in_folder: ("another run_dir", r"in Python: allow_inexact=True"),
    run_of_ppo_trainer: ("another checkpoint_dir", r"PPOTrainer\(\.\.\., allow_inexact=True\)"),
    run_that_is_loaded: (r"then call load\(\)", r"PPOTrainer\(\.\.\., allow_inexact=True\)"),
    run_of_policy_store: (
        "save to another folder",
        r"allow_inexact=True of functional_training_loop",
    ),
}


@pytest.mark.parametrize("interface", INTERFACES)
def test_other_settings_are_refused_with_advice_for_the_caller(
    interface: Interface, tmp_path: Path
) -> None:
    interface(tmp_path / "saved", gamma=0.98)
    advice = f"gamma was 0.98, now 0.5.* with the saved settings.*{INTERFACES[interface][0]}"
    with pytest.raises(ConfigError, match=advice) as raised:
        interface(tmp_path / "saved", gamma=0.5)
    assert ("metta train" in str(raised.value)) is (interface is run_in_folder)
    interface(tmp_path / "elsewhere", gamma=0.5)


@pytest.mark.parametrize("interface", INTERFACES)
def test_other_libraries_are_refused_with_advice_for_the_caller(
    interface: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "metta.rl.resume.conditions.machine_of",
            lambda device="cpu": {**machine_of(device), "torch": "1.0"},
        )
        interface(tmp_path / "saved")
    advice = rf"torch was 1\.0.*accept that with .*{INTERFACES[interface][1]}"
    with pytest.raises(InexactResumeError, match=advice) as raised:
        interface(tmp_path / "saved", total_timesteps=64)
    assert ("--allow-inexact" in str(raised.value)) is (interface is run_in_folder)


def test_the_commands_name_their_own_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in_folder(tmp_path / "first", gamma=0.98)
    words = [f"{name}={str(value).lower()}" for name, value in SMALL.items() if name != "env"]
    begin = ["train", "CartPole-v1", *words, "--run", "first", "--output", str(tmp_path)]
    for command in (begin, ["resume", str(tmp_path / "first")]):
        assert main([*command, "gamma=0.5", "total_timesteps=64"]) == 2
        assert re.search(r"was 0\.98, now 0\.5.*metta train --run NAME", capsys.readouterr().err)


def test_the_weights_alone_are_taken_where_the_settings_differ(tmp_path: Path) -> None:
    with ppo_trainer(gamma=0.98) as first:
        first.train(32)
        saved = first.save(tmp_path)
    with ppo_trainer(gamma=0.5) as second:
        with pytest.raises(ConfigError, match=r"the weights alone, use metta\.store\.load_weights"):
            second.load(saved)
        load_weights(saved / "policy.safetensors", second.policy)
        assert second.policy.parameter_hash() == first.policy.parameter_hash()


def test_another_network_is_refused_with_advice_for_the_caller(tmp_path: Path) -> None:
    with ppo_trainer() as first, ppo_trainer(hidden_size=4) as other:
        first.save(tmp_path)
    with (
        ppo_trainer(other.policy.module) as second,
        pytest.raises(StateError, match=r"saved settings, environment and network, then call load"),
    ):
        second.load(tmp_path)


def test_components_resume_under_other_libraries_when_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "metta.rl.resume.conditions.machine_of",
            lambda device="cpu": {**machine_of(device), "torch": "1.0"},
        )
        run_of_policy_store(tmp_path)
    config = config_of().trainer
    curriculum = Curriculum(config.curriculum)
    envs = configured_vec_env(curriculum.tasks, config.rollout)
    with (
        pytest.warns(MettaWarning, match=r"torch was 1\.0"),
        pytest.warns(MettaWarning, match="holds this run already"),
    ):
        parts = create_training_components(
            config, None, None, envs, None, PolicyStore(tmp_path),
            curriculum=curriculum, allow_inexact=True,
        )  # fmt: skip
    assert parts.state.agent_step == 32
