"""What cannot be evaluated through a queue is refused before training starts, with the fix."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, MissingExtraError
from metta.rl.clean_trainer import Trainer
from metta.rl.evaluate.described import (
    asked_by,
    describe_evaluator,
    envs_of_workers,
    evaluator_of,
    modules_of,
)
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.run_queue import QueuedRun, _place_of
from metta.rl.hooks import EvaluationHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.settings import apply_settings
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig
from metta.train.train_config import EvaluationConfig, TrainingConfig

SETTINGS = {
    "env": "CartPole-v1",
    "total_timesteps": 16,
    "num_envs": 2,
    "horizon": 8,
    "num_minibatches": 1,
    "hidden_size": 8,
    "eval_episodes": 2,
    "verbose": False,
    "evaluation.where": "queue",
}


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, obs: torch.Tensor) -> Any:
        out = self.layer(obs)
        return out[:, :2], out[:, 2]


@pytest.mark.parametrize(
    ("more", "parts", "words"),
    [
        (
            {},
            {"policy": Own()},
            "builds? metta's own networks only, not Own; evaluation.where=process",
        ),
        (
            {},
            {"env": CorridorEnv},
            "named by an id, and CorridorEnv is a type; name it as module:Class",
        ),
        (
            {"checkpoint_interval": 0, "evaluation.where": "ray"},
            {},
            "this run makes none; set checkpoint_interval",
        ),
        (
            {"replay_interval": 1},
            {"replay_dir": "outside"},
            "replay_dir is '.*outside'; leave replay_dir",
        ),
        (
            {"evaluation.database": "nowhere"},
            {},
            "is not a URL, and no SQLite file of that name exists",
        ),
    ],
)
def test_it_is_refused_before_training_starts(
    tmp_path: Path, more: dict[str, Any], parts: dict[str, Any], words: str
) -> None:
    settings = {**SETTINGS, **more}
    if "env" in parts:
        del settings["env"]
        parts = {"curriculum": Curriculum(env=parts["env"])}
    if "replay_dir" in parts:
        parts = {"replay_dir": tmp_path / "outside"}
    config = apply_settings(TrainingConfig(), settings)
    trainer = Trainer(config, run_dir=tmp_path / "run", **parts)
    with pytest.raises(ConfigError, match=words):
        trainer.setup()
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "stats.db").exists()


@pytest.mark.parametrize(
    ("where", "package", "extra"), [("queue", "sqlalchemy", "database"), ("ray", "ray", "ray")]
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, package: str, extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    config = apply_settings(TrainingConfig(), {**SETTINGS, "evaluation.where": where})
    trainer = Trainer(config, run_dir=tmp_path / "run")
    with pytest.raises(MissingExtraError, match=rf"metta-rl\[{extra}\]"):
        trainer.setup()


def test_a_run_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs the folder of a run.*run_dir="):
        EvaluationHook(EvaluationConfig(where="queue"), Curriculum(env="CartPole-v1"))
    with pytest.raises(ConfigError, match="has no effect in PPOTrainer: it does not evaluate"):
        PPOTrainer(None, "CartPole-v1", **{"evaluation.where": "queue"})


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="give env:NAME") as caught:
        EvaluationConfig(database="postgresql://metta:SessilePassword77@host/x")
    assert "SessilePassword77" not in str(caught.value)
    assert EvaluationConfig(database="env:QUEUE").database == "env:QUEUE"


def test_the_advice_names_the_module_that_a_worker_needs(tmp_path: Path) -> None:
    run = QueuedRun("id", tmp_path / "a", tmp_path, tmp_path, is_saved=True)
    own, known = PolicyEvaluator("metta.envs.toy:CorridorEnv"), PolicyEvaluator("CartPole-v1")
    options = envs_of_workers([own, known, own])
    assert options == " --env metta.envs.toy:CorridorEnv"
    for where in (None, "jobs.db"):
        found = _place_of(EvaluationConfig(where="queue", database=where), run, options)
        assert found.advice.endswith(options)
    assert envs_of_workers([known]) == ""


def test_the_database_is_the_setting_else_that_of_the_environment_else_in_the_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = QueuedRun("id", tmp_path / "runs" / "a", tmp_path, tmp_path, is_saved=True)
    monkeypatch.delenv("METTA_STATS_URL", raising=False)
    found = _place_of(EvaluationConfig(where="queue"), run, "")
    assert found.database == str(tmp_path / "runs" / "stats.db")
    assert found.advice == f"start one with: metta worker --runs {tmp_path / 'runs'}"
    monkeypatch.setenv("METTA_STATS_URL", "postgresql://metta:SessilePassword77@host/x")
    found = _place_of(EvaluationConfig(where="queue"), run, "")
    assert found.database.endswith("@host/x")
    assert "SessilePassword77" not in found.advice
    found = _place_of(EvaluationConfig(where="ray", database="env:QUEUE"), run, "")
    assert (found.database, found.ray) == ("env:QUEUE", {"address": None, "num_workers": 1})


def test_an_evaluator_is_the_same_after_it_was_described() -> None:
    simulations = {
        "a/b": SimulationConfig(
            env="CartPole-v1", env_kwargs={"max_episode_steps": 9}, greedy=True
        ),
        "a/own": SimulationConfig(env="metta.envs.toy:CorridorEnv"),
        "a/task": SimulationConfig(num_episodes=3),
    }
    suite = SimulationSuiteConfig(name="mine", simulations=simulations, skip_unfit=True)
    task = Curriculum(env="CartPole-v1").task
    before = PolicyEvaluator(suite, EvaluationConfig(eval_episodes=7), seed=5, training_task=task)
    described = describe_evaluator(before, asked_by("queue"))
    after = evaluator_of(described)
    assert (after.suite, after.tasks, after.seed) == (before.suite, before.tasks, before.seed)
    assert after.config == before.config
    assert after.policy_store.root == before.policy_store.root
    assert modules_of(described) == ["metta.envs.toy"]


@pytest.mark.parametrize(
    "change", [{"suite": None}, {"task": {"env": 1}}, {"seed": "x"}, {"evaluation": {}}]
)
def test_data_that_describes_nothing_is_refused(change: dict[str, Any]) -> None:
    described = describe_evaluator(PolicyEvaluator("CartPole-v1"), asked_by("queue"))
    if change == {"evaluation": {}}:
        described["evaluation"] = {"eval_episodes": "many"}
    else:
        described |= change
    with pytest.raises(ConfigError):
        evaluator_of(described)


def test_arguments_that_are_no_data_are_refused() -> None:
    task = Curriculum(env="CartPole-v1").task
    task.env_kwargs["maker"] = CorridorEnv
    with pytest.raises(
        ConfigError, match=r"cannot describe what is played: env_kwargs\.maker: found type"
    ):
        describe_evaluator(PolicyEvaluator(task), asked_by("queue"))


def test_an_evaluator_of_ones_own_is_refused() -> None:
    class Mine(PolicyEvaluator):
        pass

    with pytest.raises(ConfigError, match="evaluator of your own, a Mine; evaluation"):
        describe_evaluator(Mine("CartPole-v1"), asked_by("queue"))


def test_a_policy_of_other_agents_is_found_at_once(tmp_path: Path) -> None:
    simulation = SimulationConfig(
        env="grid/crowd", npc_policy_uri=str(tmp_path / "gone"), policy_agents_pct=0.5
    )
    suite = SimulationSuiteConfig(simulations={"a/b": simulation})
    with pytest.raises(Exception, match="there is no policy"):
        describe_evaluator(PolicyEvaluator(suite), asked_by("queue"))
