"""Runs of several shards in one process, through `PPOTrainer` and `Trainer`."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from metta import PPOTrainer, Trainer, load_rollout, save_rollout
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv, MaskedCorridorEnv
from metta.errors import ConfigError
from metta.train.train_config import TrainingConfig

SMALL = {
    "num_envs": 8, "horizon": 16, "update_epochs": 2, "num_minibatches": 2, "hidden_size": 8,
    "bptt_horizon": 8, "num_shards": 4, "recipe": "none", "verbose": False, "seed": 5,
    "eval_episodes": 0,
}  # fmt: skip
BATCH = 8 * 16
KINDS: dict[str, dict[str, Any]] = {
    "mlp": {"env": "CartPole-v1", "normalize_observations": True, "normalize_returns": True},
    "lstm": {"env": "CartPole-v1", "core": "lstm"},
    "continuous": {"env": "Pendulum-v1", "schedule": "adaptive_kl", "target_kl": 0.01},
    "native": {"env": "metta/cartpole"},
    "self-play": {"env": "grid/gather", "learner_share": 0.5, "self_play_interval": 2},
    "curriculum": {
        "env": "CartPole-v1",
        "trainer.curriculum.kind": "learning_progress",
        "trainer.curriculum.buckets": {"max_episode_steps": [4, 8, 16]},
    },
}


def config_of(kind: str, epochs: int, **settings: Any) -> TrainingConfig:
    rows = BATCH * (2 if kind == "self-play" else 1)
    chosen = {**SMALL, **KINDS[kind], "total_timesteps": epochs * rows, **settings}
    return TrainingConfig.from_dict(chosen)


def digest_of_run(folder: Path, config: TrainingConfig) -> str:
    with Trainer(config, run_dir=folder) as trainer:
        trainer.train()
        return trainer.digest()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    expected = digest_of_run(tmp_path / "whole", config_of(kind, 6))
    digest_of_run(tmp_path / "parts", config_of(kind, 3))
    assert digest_of_run(tmp_path / "parts", config_of(kind, 6)) == expected


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_the_number_of_shards_decides_the_numbers(tmp_path: Path, kind: str) -> None:
    found = {
        digest_of_run(tmp_path / str(shards), config_of(kind, 2, num_shards=shards))
        for shards in (1, 2, 4)
    }
    assert len(found) == 3


def test_phases_apart_equal_training(tmp_path: Path) -> None:
    settings = {**SMALL, "total_timesteps": 3 * BATCH}
    del settings["eval_episodes"]
    with PPOTrainer(None, "CartPole-v1", **settings) as whole:
        whole.train()
        expected = whole.policy.parameter_hash()
    with PPOTrainer(None, "CartPole-v1", **settings) as apart:
        for number in range(3):
            data = apart.collect_rollouts(16)
            assert data["observations"].shape == (16, 8, 4)
            save_rollout(tmp_path / f"{number}.safetensors", data)
            apart.learn(load_rollout(tmp_path / f"{number}.safetensors"))
        assert apart.policy.parameter_hash() == expected


def test_a_rollout_of_another_length_can_be_collected() -> None:
    with PPOTrainer(None, "CartPole-v1", num_shards=2, num_envs=4, verbose=False) as trainer:
        assert trainer.collect_rollouts(5)["rewards"].shape == (5, 4)
        trainer.learn(trainer.collect_rollouts(7))


def test_shards_see_other_episodes() -> None:
    with PPOTrainer(None, "CartPole-v1", **{**SMALL, "eval_episodes": 0}) as trainer:
        first = trainer.collect_rollouts(16)["observations"][0]
    assert len({tuple(row.tolist()) for row in first}) == 8


def test_workers_are_shared_out(tmp_path: Path) -> None:
    expected = digest_of_run(tmp_path / "serial", config_of("mlp", 2, num_shards=2))
    config = config_of("mlp", 2, num_shards=2, num_workers=2)
    assert digest_of_run(tmp_path / "workers", config) == expected


def test_masks_are_kept_when_a_run_has_shards() -> None:
    with PPOTrainer(None, MaskedCorridorEnv, **{**SMALL, "eval_episodes": 0}) as trainer:
        data = trainer.collect_rollouts(16)
        assert data["action_masks"].gather(2, data["actions"][..., None]).all()
        trainer.learn(data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_shards": 3}, "num_envs=8 does not split into num_shards=3 equal parts; try num_envs=9"),
        ({"num_workers": 3}, "num_workers=3 does not split into num_shards=4 equal parts"),
        ({"num_groups": 4}, "each of 4 shards has 2 environments, which do not split"),
        ({"minibatch_size": 2}, "minibatch_size=2 does not split into num_shards=4"),
        ({"num_processes": 3}, "num_processes=3 processes cannot share out num_shards=4; try num_shards=3"),
        ({"driver": "step"}, "driver=step compiles updates of one shard only"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.from_dict({**SMALL, **settings})


@pytest.mark.parametrize(
    "make",
    [CorridorEnv, lambda: gymnasium.make_vec("CartPole-v1", 8), lambda: [CorridorEnv] * 8],
    ids=["environment", "vector environment", "list"],
)
def test_environments_that_cannot_be_made_again_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="give an id or a factory, or set num_shards=1"):
        PPOTrainer(None, make(), **SMALL)


def test_a_curriculum_sees_the_episodes_of_all_shards(tmp_path: Path) -> None:
    config = config_of("curriculum", 3)
    curriculum = Curriculum(config.trainer.curriculum)
    with Trainer(config, curriculum, run_dir=tmp_path) as trainer:
        trainer.train()
        ended = sum(shard.num_episodes for shard in trainer.components.collector.shards)
    assert ended > 20
    assert int(curriculum.scores.counts.sum()) == ended


def test_processes_are_refused_where_one_process_trains() -> None:
    with pytest.raises(ConfigError, match=r"num_processes.*it trains in one process"):
        PPOTrainer(None, "CartPole-v1", num_shards=2, num_processes=2)
