"""Every way to train is the same training: equal settings give equal parameters."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.rl import clean_trainer, trainer_component
from metta.rl.clean_trainer import Trainer
from metta.rl.components import RolloutManager, TrainingManager
from metta.rl.functional_trainer import (
    create_training_components,
    default_training_step,
    functional_training_loop,
)
from metta.rl.hooks.base import TrainerHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.trainer import MettaTrainer, train
from metta.rl.training_components import make_experience
from metta.rl.training_state import TrainerState
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

CASES = {
    "mlp": {"env": "CartPole-v1", "lr_schedule": "linear"},
    "lstm": {"env": "CartPole-v1", "core": "lstm", "bptt_horizon": 4, "ent_schedule": "cosine"},
    "box": {"env": "Pendulum-v1", "normalize_returns": True, "lr_schedule": "adaptive_kl"},
}
STEPS = 96


def config_of(case: str) -> TrainingConfig:
    small = {
        "total_timesteps": STEPS,
        "num_envs": 4,
        "horizon": 8,
        "update_epochs": 2,
        "num_minibatches": 2,
        "hidden_size": 8,
        "learning_rate": 1e-2,
        "verbose": False,
        "eval_episodes": 0,
        "recipe": "none",
    }
    return apply_settings(TrainingConfig(), {**small, **CASES[case]})


class Keep(TrainerHook):
    """Keeps the policy that trained."""

    policy: Policy

    def on_training_end(self, policy: Policy) -> None:
        self.policy = policy


def fresh_policy(config: TrainingConfig) -> Policy:
    env = make_vec_env(config.env)
    policy = make_policy(
        env.observation_space, env.action_space, config.agent, seed=config.trainer.seed
    )
    env.close()
    return policy


def ppo_trainer(config: TrainingConfig, path: Path) -> str:
    with PPOTrainer(None, config.env, config=config) as trainer:
        trainer.train()
        return trainer.policy.parameter_hash()


def functional(config: TrainingConfig, path: Path) -> str:
    policy = fresh_policy(config)
    curriculum = Curriculum(config.trainer.curriculum)
    functional_training_loop(config.trainer, config.trainer.ppo, policy, curriculum, None)
    return policy.parameter_hash()


def own_loop(config: TrainingConfig, path: Path) -> str:
    policy, settings = fresh_policy(config), config.trainer
    env = make_vec_env(config.env, num_envs=settings.rollout.num_envs)
    experience = make_experience(policy, env, settings)
    parts = create_training_components(settings, settings.ppo, policy, env, experience, None)
    state = TrainerState()
    while state.agent_steps < settings.total_timesteps:
        default_training_step(state, parts, settings, experience)
    env.close()
    return policy.parameter_hash()


def managers(config: TrainingConfig, path: Path) -> str:
    def step(state, components, settings, experience):
        state.measure_progress(settings.total_timesteps)
        _, num_steps = RolloutManager(components.collector).collect()
        state.agent_step += num_steps
        return TrainingManager(components.ppo).train(experience, progress=state.progress)

    policy = fresh_policy(config)
    functional_training_loop(config.trainer, policy=policy, step_fn=step)
    return policy.parameter_hash()


def bare_trainer(config: TrainingConfig, path: Path) -> str:
    with Trainer(config) as trainer:
        trainer.train()
        return trainer.policy.parameter_hash()


def given_policy(config: TrainingConfig, path: Path) -> str:
    policy = fresh_policy(config)
    trainer = clean_trainer.Trainer(config.trainer, Curriculum(config.trainer.curriculum), policy)
    trainer.train()
    trainer.cleanup()
    return policy.parameter_hash()


def run_function(config: TrainingConfig, path: Path) -> str:
    keep = Keep()
    train(path / "run", config, hooks=[keep])
    return keep.policy.parameter_hash()


def run_component(config: TrainingConfig, path: Path) -> str:
    policy = fresh_policy(config)
    trainer_component.train(path / "run", config.trainer, policy=policy)
    return policy.parameter_hash()


def workers(config: TrainingConfig, path: Path) -> str:
    keep = Keep()
    train(path / "run", config, hooks=[keep], vectorization="multiprocessing")
    return keep.policy.parameter_hash()


def legacy(config: TrainingConfig, path: Path) -> str:
    keep = Keep()
    with pytest.warns(DeprecationWarning, match="MettaTrainer is deprecated"):
        trainer = MettaTrainer(config)
    trainer.trainer.add_hook(keep)
    trainer.train()
    return keep.policy.parameter_hash()


def legacy_mapping(config: TrainingConfig, path: Path) -> str:
    keep = Keep()
    with pytest.warns(DeprecationWarning, match="MettaTrainer"):
        trainer = MettaTrainer(config.to_dict(), None, None, None, None)
    trainer.trainer.add_hook(keep)
    trainer.train()
    return keep.policy.parameter_hash()


FACES: list[Callable[[TrainingConfig, Path], str]] = [
    functional,
    own_loop,
    managers,
    bare_trainer,
    given_policy,
    run_function,
    run_component,
    workers,
    legacy,
    legacy_mapping,
]


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_equal_when_any_face_trains(case: str, tmp_path: Path) -> None:
    config = config_of(case)
    expected = ppo_trainer(config, tmp_path)
    assert expected != fresh_policy(config).parameter_hash()
    found = {}
    for face in FACES:
        folder = tmp_path / face.__name__
        found[face.__name__] = face(config, folder)
    assert found == dict.fromkeys(found, expected)


def test_parameters_differ_when_one_setting_differs(tmp_path: Path) -> None:
    config = config_of("mlp")
    ppo = dataclasses.replace(config.trainer.ppo, gamma=0.5)
    other = fresh_policy(config)
    functional_training_loop(config.trainer, ppo, other)
    assert other.parameter_hash() != ppo_trainer(config, tmp_path)
