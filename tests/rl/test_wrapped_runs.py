"""Runs whose environments have wrappers: collected, evaluated, recorded, saved and resumed in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta.cli.main import main
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.errors import ConfigError
from metta.replays.file import list_replays, load_replay
from metta.rl.components import Trainer
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

WRAPPERS = ["FrameStack(3)", "FlattenObservation", "TimeLimit(13)"]
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "wrappers": WRAPPERS,
    "total_timesteps": 96,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 2,
    "hidden_size": 8,
    "actor": "eager",
    "driver": "eager",
    "verbose": False,
    "eval_episodes": 0,
    "monitor_seconds": 0,
    "checkpoint_interval": 1,
    "keep_last": 99,
}


def small(**more: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **more})


def trained(folder: Path, **more: Any) -> str:
    """The digest of a run that was trained in a folder."""
    trainer = Trainer(small(**more), run_dir=folder)
    try:
        trainer.train()
        return trainer.digest()
    finally:
        trainer.cleanup()


def test_a_run_ends_equal_to_the_bit_when_it_was_resumed_inside_of_episodes(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "cut", total_timesteps=48)
    about = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert about["environments"]["restore_class"] == "repeat"
    assert trained(tmp_path / "cut") == whole
    trained(tmp_path / "workers", total_timesteps=48, num_workers=2)
    assert trained(tmp_path / "workers") == whole


@pytest.mark.parametrize("wrappers", [[], WRAPPERS[::-1], ["FrameStack(3)", "TimeLimit(13)"]])
def test_a_run_is_refused_when_it_would_resume_in_other_wrappers(
    tmp_path: Path, wrappers: list[str]
) -> None:
    trained(tmp_path, total_timesteps=16)
    with pytest.raises(ConfigError, match=r"other settings.*trainer\.curriculum\.wrappers was"):
        trained(tmp_path, total_timesteps=32, wrappers=wrappers)


def test_the_same_wrappers_resume_when_they_are_written_otherwise(tmp_path: Path) -> None:
    trained(tmp_path, total_timesteps=16)
    other = [{"name": "FrameStack", "stack_size": 3}, "FlattenObservation", "TimeLimit(13)"]
    trained(tmp_path, total_timesteps=32, wrappers=other)


def test_scores_and_replays_are_of_wrapped_episodes_when_a_run_is_evaluated(tmp_path: Path) -> None:
    config = small(eval_episodes=3, evaluate_interval=100, replay_interval=100)
    trainer = Trainer(config, run_dir=tmp_path)
    try:
        trainer.train()
        episodes = trainer.evaluation_manager.episodes
    finally:
        trainer.cleanup()
    assert episodes is not None
    assert max(episodes.returns) <= 13.0
    (_, info), *_ = list_replays(tmp_path / "replays")
    assert info.num_steps <= 13
    assert info.ended == ("truncated" if info.num_steps == 13 else "terminated")


def test_replays_hold_what_the_policy_saw_when_nothing_can_be_drawn(tmp_path: Path) -> None:
    config = small(env="metta.envs.toy:CorridorEnv", wrappers=["FrameStack(3)"], eval_episodes=1)
    config = apply_settings(config, {"replay_interval": 100})
    trainer = Trainer(config, run_dir=tmp_path)
    try:
        trainer.train()
    finally:
        trainer.cleanup()
    (path, info), *_ = list_replays(tmp_path / "replays")
    assert info.kind == "observations"
    (name,) = [name for name in load_replay(path).tracks if name.startswith("observations/")]
    assert load_replay(path).tracks[name].shape[-2] == 3


def test_commands_use_the_wrappers_of_a_run_when_they_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out = ("wrappers", "hidden_size")
    settings = [f"{name}={value}" for name, value in SMALL.items() if name not in left_out]
    settings += ["--runs", str(tmp_path)]
    stacked = "env.wrappers=[FrameStack(3), FlattenObservation, TimeLimit(13)]"
    assert main(["train", stacked, *settings, "total_timesteps=32", "--run", "a"]) == 0
    text = (tmp_path / "a" / "config.yaml").read_text()
    assert "- TimeLimit(max_episode_steps=13)" in text
    assert main(["resume", "a", "--runs", str(tmp_path), "total_timesteps=64"]) == 0
    assert main(["eval", "a:latest", "--episodes", "4", "--runs", str(tmp_path)]) == 0
    assert main(["eval", "a:latest", "--env", "CartPole-v0", "--runs", str(tmp_path)]) == 0
    assert main(["finetune", "a:latest", stacked, *settings, "--run", "b"]) == 0
    assert main(["train", stacked, *settings, "--dry-run"]) == 0
    assert "training/CartPole-v1" in capsys.readouterr().out


def test_the_command_says_what_is_wrong_when_a_wrapper_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "CartPole-v1", "wrappers=FrameStak(4)", "--runs", str(tmp_path)]
    assert main(words) != 0
    assert "did you mean 'FrameStack'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ppo_trainer_wraps_what_it_is_given_when_settings_name_wrappers() -> None:
    of_runs = ("env", "checkpoint_interval")
    settings = {name: value for name, value in SMALL.items() if name not in of_runs}
    with PPOTrainer(None, "CartPole-v1", **settings) as trainer:
        assert trainer.collect_rollouts(4)["observations"].shape == (4, 2, 12)
    curriculum = Curriculum(small(wrappers=["FrameStack(2)"]).trainer.curriculum)
    with pytest.raises(ConfigError, match="wrappers are given twice, and differ"):
        PPOTrainer(None, curriculum, **settings)


def test_every_task_is_wrapped_when_a_curriculum_has_several() -> None:
    curriculum = Curriculum(
        small(
            **{"curriculum.kind": "random"}, buckets={"sutton_barto_reward": [True, False]}
        ).trainer.curriculum
    )
    vec_env = make_vec_env(curriculum.tasks, num_envs=2)
    try:
        assert vec_env.observation_space.shape == (12,)
        obs = vec_env.obs_spec.zeros(2)
        vec_env.reset([1, 2], obs)
        is_cut = False
        for step in range(40):
            vec_env.send(0, np.full(2, step % 2))
            is_cut |= bool(vec_env.recv(0, obs).truncated.any())
    finally:
        vec_env.close()
    assert is_cut


def test_sizes_are_chosen_for_wrapped_observations_when_auto_batch_is_on() -> None:
    settings = {**SMALL, "auto_batch": True}
    for name in ("env", "num_envs", "horizon", "checkpoint_interval"):
        del settings[name]
    with PPOTrainer(None, "CartPole-v1", **settings) as trainer:
        assert trainer.batch_plan is not None
        assert trainer.env.observation_space.shape == (12,)
