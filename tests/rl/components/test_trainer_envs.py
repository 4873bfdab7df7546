"""`Trainer`, the functional loop and `Curriculum` take every environment that `PPOTrainer` takes."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError
from metta.rl.components import Trainer
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.functional_trainer import create_training_components, functional_training_loop
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.trainer import train
from metta.store.policy_store import PolicyStore
from metta.train.settings import apply_settings
from metta.train.train_config import CurriculumConfig, TrainingConfig
from tests.envs.tasks_and_agents import NAMES, Party

SMALL: dict[str, Any] = {
    "total_timesteps": 32,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "actor": "eager",
    "driver": "eager",
    "verbose": False,
    "eval_episodes": 0,
    "monitor_seconds": 0,
}
CORRIDOR_ID = "metta.envs.toy:CorridorEnv"


def small(**more: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **more})


def corridor() -> CorridorEnv:
    return CorridorEnv()


ENVS: dict[str, Any] = {
    "id": lambda: "Acrobot-v1",
    "own id": lambda: CORRIDOR_ID,
    "class": lambda: CorridorEnv,
    "factory": lambda: corridor,
    "factories": lambda: [corridor, corridor],
    "vector": lambda: gymnasium.vector.SyncVectorEnv([corridor, corridor]),
    "vec_env": lambda: make_vec_env(corridor, num_envs=2),
    "curriculum": lambda: Curriculum(env=corridor),
}


@pytest.mark.parametrize("kind", ENVS)
def test_every_door_learns_the_same_when_it_is_given_the_same_environment(kind: str) -> None:
    make = ENVS[kind]
    with PPOTrainer(None, make(), **SMALL) as plain:
        plain.train()
        expected = plain.policy.parameter_hash()
    with Trainer(small(), env=make()) as trainer:
        trainer.train()
        assert trainer.policy.parameter_hash() == expected
    seen = []
    config, agent = small().trainer, plain.policy.config

    class Last:
        def on_epoch_end(self, policy: Any) -> None:
            seen.append(policy.parameter_hash())

    with PPOTrainer(None, make(), **SMALL) as fresh:
        functional_training_loop(config, None, fresh.policy, env=make(), hooks=[Last()])
    assert (seen[-1], agent.hidden_size) == (expected, 8)


def test_one_environment_is_one_row_when_it_exists_already() -> None:
    with Trainer(small(num_envs=8), env=corridor()) as trainer:
        assert trainer.environment_manager.num_agents == 1


def test_a_run_is_resumed_by_its_settings_when_the_environment_has_an_id(tmp_path: Path) -> None:
    train(tmp_path, small(), env=CORRIDOR_ID)
    config = TrainingConfig.from_yaml(tmp_path / "config.yaml")
    assert config.env == CORRIDOR_ID
    config = apply_settings(config, {"total_timesteps": 48})
    assert train(tmp_path, config).agent_steps == 48


def test_a_run_says_how_it_is_resumed_when_the_environment_has_no_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(verbose=True)
    train(tmp_path, config, env=corridor)
    assert "the environment corridor was passed as an object" in capsys.readouterr().err
    assert json.loads((tmp_path / "run.json").read_text())["own_environment"] == "corridor"
    longer = small(total_timesteps=48)
    with pytest.raises(ConfigError, match=r"environment corridor, now it is CartPole-v1"):
        train(tmp_path, longer)
    assert train(tmp_path, longer, env=corridor).agent_steps == 48


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        ({"env": "Acrobot-v1"}, {"env": "CartPole-v1"}, "env='CartPole-v1', but the settings have"),
        ({}, {"env": corridor, "curriculum": Curriculum()}, "env= and curriculum= both"),
        ({}, {"curriculum": "CartPole-v1"}, "give an environment as env="),
        ({"num_envs": 3}, {"env": [corridor, corridor]}, "num_envs=3, but the list of factories"),
        ({"env_kwargs": {"length": 3}}, {"env": CorridorEnv()}, "CorridorEnv given, which exists"),
    ],
)
def test_a_trainer_is_refused_when_environment_and_settings_disagree(
    settings: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Trainer(small(**settings), **options).setup()
    with pytest.raises(ConfigError, match=says):
        functional_training_loop(small(**settings).trainer, **options)


@pytest.mark.parametrize("env", [3, object(), []])
def test_anything_else_is_refused_when_it_is_no_environment(env: Any) -> None:
    with pytest.raises(EnvError, match="cannot make an environment of"):
        Trainer(small(), env=env).setup()


def turn_by_turn() -> Any:
    spread = pytest.importorskip("mpe2.simple_spread_v3", reason="needs mpe2")
    return spread.env(max_cycles=5)


UNSCORED = {name: value for name, value in SMALL.items() if name != "eval_episodes"}
EXISTING: dict[str, Any] = {
    "gymnasium": corridor,
    "vector": ENVS["vector"],
    "vec_env": ENVS["vec_env"],
    "parallel": Party,
    "turn by turn": turn_by_turn,
}


@pytest.mark.parametrize("kind", EXISTING)
def test_evaluation_is_refused_before_any_work_when_the_environment_exists_once_only(
    kind: str, tmp_path: Path
) -> None:
    env = EXISTING[kind]()
    with closing(env), pytest.raises(ConfigError, match="evaluation needs its own environments"):
        train(tmp_path / "run", small(eval_episodes=1), env=env)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", EXISTING)
def test_an_evaluator_never_plays_in_an_environment_that_exists(kind: str) -> None:
    env = EXISTING[kind]()
    with closing(env), PPOTrainer(None, env, **UNSCORED) as trainer:
        evaluator, policy = PolicyEvaluator(env), trainer.policy
    with pytest.raises(ConfigError, match="evaluation needs its own environments"):
        evaluator.evaluate(policy)


def test_a_class_of_many_agents_is_evaluated_when_it_makes_its_own(tmp_path: Path) -> None:
    class Declared(Party):
        possible_agents = NAMES  # as an attribute of the class, by which objects are known

    train(tmp_path, small(eval_episodes=1), env=Declared)
    assert list((tmp_path / "checkpoints").iterdir())


def test_arguments_reach_every_factory_when_a_list_is_given() -> None:
    config = small(env_kwargs={"length": 3})
    with Trainer(config, env=[CorridorEnv, CorridorEnv]) as trainer:
        assert trainer.environment_manager.observation_space.shape == (3,)


def test_the_parts_make_configured_environments_when_they_are_named(tmp_path: Path) -> None:
    config = small(wrappers=["FrameStack(2)"]).trainer
    store = PolicyStore(tmp_path)
    parts = create_training_components(config, None, None, CorridorEnv, None, store)
    try:
        assert parts.vecenv.num_rows == 2
        assert parts.vecenv.observation_space.shape == (2, 8)
        assert parts.conditions.settings["environment"] == "CorridorEnv"
    finally:
        parts.vecenv.close()


def test_a_curriculum_names_the_environment_when_it_is_given_an_id() -> None:
    curriculum = Curriculum(env="Acrobot-v1")
    assert (curriculum.config.env, curriculum.task.env) == ("Acrobot-v1", "Acrobot-v1")
    with pytest.raises(ConfigError, match=r"env='Acrobot-v1', but the settings have"):
        Curriculum(CurriculumConfig(env="Pendulum-v1"), env="Acrobot-v1")
