"""Going on with a run: nothing lost, nothing silently begun anew, nothing learned under other settings."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from metta import PPOTrainer
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import CheckpointError, ConfigError, HookError, MettaWarning, StateError
from metta.loggers import read_events
from metta.rl.clean_trainer import Trainer
from metta.rl.functional_trainer import functional_training_loop
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.trainer import MettaTrainer, train
from metta.stateful import digest_of
from metta.store.checkpoints.files import list_checkpoints
from metta.store.policy_store import PolicyStore
from metta.train.changes import MAY_CHANGE, check_changes, plain_settings
from metta.train.settings import apply_settings, setting_paths
from metta.train.train_config import CurriculumConfig, TrainingConfig

SMALL = {
    "total_timesteps": 64,
    "num_envs": 2,
    "horizon": 16,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "verbose": False,
    "monitor_seconds": 0,
    "checkpoint_interval": 1,
    "eval_episodes": 0,
}


def small(**more: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **more})


def epochs(folder: Path) -> list[int]:
    return [entry.epoch for entry in list_checkpoints(folder)]


def logged_steps(folder: Path) -> list[int]:
    events = read_events(folder / "events.jsonl")
    return [event.payload["agent_step"] for event in events if event.kind == "metrics"]


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1e-5},
        {"trainer.optimizer.name": "sgd"},
        {"gamma": 0.5},
        {"seed": 7},
        {"num_envs": 4},
        {"hidden_size": 16},
        {"env": "Acrobot-v1"},
    ],
    ids=str,
)
def test_a_run_is_refused_and_untouched_when_what_it_learns_by_would_change(
    change: dict[str, Any], tmp_path: Path
) -> None:
    train(tmp_path, small())
    before = (tmp_path / "config.yaml").read_text(), epochs(tmp_path / "checkpoints")
    path = setting_paths()[next(iter(change))]
    with pytest.raises(ConfigError, match=f"holds a run with other settings.*{path} was"):
        train(tmp_path, small(total_timesteps=128, **change))
    assert ((tmp_path / "config.yaml").read_text(), epochs(tmp_path / "checkpoints")) == before
    assert train(tmp_path, small(total_timesteps=96)).epoch == 3


def test_every_changeable_setting_exists_when_the_list_is_read() -> None:
    paths = set(setting_paths().values())
    for name in MAY_CHANGE:
        assert any(path == name or (name.endswith(".") and path.startswith(name)) for path in paths)
    changed = small(total_timesteps=7, num_workers=2, csv=False)
    check_changes(plain_settings(small()), plain_settings(changed), "here")


def test_training_goes_on_when_checkpoints_are_turned_off_later(tmp_path: Path) -> None:
    train(tmp_path, small())
    state = train(tmp_path, small(checkpoint_interval=0, total_timesteps=128))
    assert state.agent_step == 128
    assert logged_steps(tmp_path) == [32, 64, 96, 128]


def test_training_goes_on_elsewhere_only_when_the_folder_is_named_again(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    train(tmp_path / "run", small(), checkpoint_dir=outside)
    with pytest.raises(ConfigError, match=f"only if you name it: checkpoint_dir='{outside}'"):
        train(tmp_path / "run", small(total_timesteps=128))
    state = train(tmp_path / "run", small(total_timesteps=128), checkpoint_dir=outside)
    assert state.epoch == 4
    assert epochs(outside) == [2, 3, 4]


def test_a_folder_inside_of_the_run_is_found_again_when_the_run_was_moved(tmp_path: Path) -> None:
    train(tmp_path / "run", small(), checkpoint_dir=tmp_path / "run" / "mine")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert train(tmp_path / "moved", small(total_timesteps=128)).epoch == 4
    assert epochs(tmp_path / "moved" / "mine") == [2, 3, 4]


def test_checkpoints_of_another_run_stay_when_their_folder_is_given_to_this_one(
    tmp_path: Path,
) -> None:
    others = tmp_path / "a" / "checkpoints"
    train(tmp_path / "a", small())
    before = sorted(others.rglob("*"))
    train(tmp_path / "b", small(seed=2))
    with pytest.raises(CheckpointError, match="was written by another run"):
        train(tmp_path / "b", small(seed=2, total_timesteps=96), checkpoint_dir=others)
    assert sorted(others.rglob("*")) == before


def test_a_checkpoint_of_another_run_is_passed_over_when_it_was_put_into_this_one(
    tmp_path: Path,
) -> None:
    train(tmp_path / "a", small(total_timesteps=128))
    train(tmp_path / "b", small(seed=2))
    planted = tmp_path / "b" / "checkpoints" / "epoch_000004"
    shutil.copytree(tmp_path / "a" / "checkpoints" / "epoch_000004", planted)
    with pytest.warns(MettaWarning, match="epoch_000004' was written by another run"):
        state = train(tmp_path / "b", small(seed=2, total_timesteps=96))
    assert state.epoch == 3
    assert planted.is_dir()


def test_the_task_that_trains_is_stored_when_a_curriculum_is_given(tmp_path: Path) -> None:
    curriculum = Curriculum(CurriculumConfig(env="Acrobot-v1"))
    train(tmp_path, small().trainer, curriculum)
    assert TrainingConfig.from_yaml(tmp_path / "config.yaml").env == "Acrobot-v1"


def test_a_run_is_refused_when_its_own_environment_or_network_is_missing(tmp_path: Path) -> None:
    train(tmp_path, small(), Curriculum(env=CorridorEnv))
    with pytest.raises(ConfigError, match="holds a run with the environment CorridorEnv"):
        train(tmp_path, small(total_timesteps=128))
    state = train(tmp_path, small(total_timesteps=128), Curriculum(env=CorridorEnv))
    assert state.epoch == 4


def test_the_final_score_is_saved_when_the_last_epoch_was_saved_before(tmp_path: Path) -> None:
    state = train(tmp_path, small(eval_episodes=2))
    entries = list_checkpoints(tmp_path / "checkpoints")
    assert [entry.epoch for entry in entries] == [1, 2]
    assert entries[-1].score == state.eval_scores.avg_category_score
    best = PolicyStore(tmp_path / "checkpoints").best()
    assert best is not None
    assert best.epoch == 2
    evaluations = sum(e.kind == "evaluation" for e in read_events(tmp_path / "events.jsonl"))
    train(tmp_path, small(eval_episodes=2))
    again = sum(e.kind == "evaluation" for e in read_events(tmp_path / "events.jsonl"))
    assert (evaluations, again) == (1, 1)


def test_evaluations_name_only_the_policy_they_evaluated(tmp_path: Path) -> None:
    train(
        tmp_path,
        small(checkpoint_interval=2, eval_episodes=1, evaluate_interval=1, total_timesteps=96),
    )
    events = [e.payload for e in read_events(tmp_path / "events.jsonl") if e.kind == "evaluation"]
    named = {payload["epoch"]: payload["policy_uri"] for payload in events}
    assert named[1] is None
    assert named[2].endswith("epoch_000002")


def test_what_was_just_written_stays_when_a_damaged_checkpoint_has_a_higher_epoch(
    tmp_path: Path,
) -> None:
    train(tmp_path, small(total_timesteps=96))
    damaged = tmp_path / "checkpoints" / "epoch_000003" / "state.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)

    class Stop:
        def on_epoch_end(self, trainer_state: Any) -> None:
            trainer_state.request_stop("enough")

    shutil.rmtree(tmp_path / "checkpoints" / "epoch_000002")
    with pytest.warns(MettaWarning) as caught:
        train(tmp_path, small(keep_last=1, total_timesteps=96), hooks=[Stop()])
    assert any("going back to 'epoch_000001'" in str(warning.message) for warning in caught)
    assert epochs(tmp_path / "checkpoints") == [2, 3]
    with pytest.warns(MettaWarning) as caught:
        assert train(tmp_path, small(keep_last=1, total_timesteps=96)).epoch == 3
    assert any("going back to 'epoch_000002'" in str(warning.message) for warning in caught)
    assert train(tmp_path, small(keep_last=1, total_timesteps=128)).epoch == 4


def test_the_functional_loop_says_that_it_resumes_a_used_store(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path)
    first = functional_training_loop(small().trainer, policy_store=store)
    with pytest.warns(MettaWarning, match=r"resumes at epoch 2 \(64 steps\).*weights replace"):
        again = functional_training_loop(small(total_timesteps=128).trainer, policy_store=store)
    assert (first.epoch, again.epoch) == (2, 4)
    assert epochs(tmp_path) == [2, 3, 4]


def test_a_complete_functional_run_says_so_and_returns_its_metrics(tmp_path: Path) -> None:
    config, store = small().trainer, PolicyStore(tmp_path)
    first = functional_training_loop(config, policy_store=store)
    with pytest.warns(MettaWarning, match=r"is complete at epoch 2 .*raise total_timesteps"):
        again = functional_training_loop(config, policy_store=store)
    assert again.epoch == 2
    assert again.metrics == pytest.approx(first.metrics, rel=0, abs=0, nan_ok=True)
    assert "policy_loss" in again.metrics


def test_the_run_is_back_as_soon_as_it_is_set_up(tmp_path: Path) -> None:
    with Trainer(small(), run_dir=tmp_path) as first:
        first.train()
    with Trainer(small(total_timesteps=128), run_dir=tmp_path) as again:
        assert (again.state.epoch, again.state.agent_step) == (2, 64)
        assert again.policy.parameter_hash() == first.policy.parameter_hash()
        assert again.digest() == first.digest()
        carried = again.components.collector.state_dict()
        assert digest_of(carried) == digest_of(first.components.collector.state_dict())
        assert again.train().agent_step == 128


@pytest.mark.filterwarnings("ignore:MettaTrainer is deprecated:DeprecationWarning")
def test_a_used_store_is_restored_as_soon_as_the_parts_are_built(tmp_path: Path) -> None:
    MettaTrainer(small(), policy_store=PolicyStore(tmp_path)).train()
    with pytest.warns(MettaWarning, match="resumes at epoch 2"):
        old = MettaTrainer(small(total_timesteps=128), policy_store=PolicyStore(tmp_path))
    assert (old.trainer.state.epoch, old.trainer.state.agent_step) == (2, 64)
    assert old.train().epoch == 4


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"seed": 7}, "trainer.seed was 1, now 7"),
        ({"gamma": 0.5}, "trainer.ppo.gamma was 0.99, now 0.5"),
        ({"learning_rate": 0.5}, "trainer.optimizer.learning_rate was"),
    ],
)
@pytest.mark.filterwarnings("ignore:MettaTrainer is deprecated:DeprecationWarning")
def test_a_used_store_is_refused_when_the_run_is_another(
    change: dict[str, Any], found: str, tmp_path: Path
) -> None:
    functional_training_loop(small().trainer, policy_store=PolicyStore(tmp_path))
    wanted = small(total_timesteps=128, **change).trainer
    with pytest.raises(ConfigError, match=found):
        functional_training_loop(wanted, policy_store=PolicyStore(tmp_path))
    with pytest.raises(ConfigError, match=found):
        MettaTrainer(wanted, policy_store=PolicyStore(tmp_path))
    with pytest.raises(ConfigError, match=found):
        PPOTrainer(
            None, "CartPole-v1", config=TrainingConfig(trainer=wanted), checkpoint_dir=tmp_path
        )
    assert epochs(tmp_path) == [1, 2]


def test_a_loss_of_another_weight_is_refused_when_a_run_resumes(tmp_path: Path) -> None:
    def calm(new_values: torch.Tensor) -> torch.Tensor:
        return new_values.square().mean()

    train(tmp_path, small(), custom_losses=[CustomLoss(calm, weight=0.1)])
    with pytest.raises(ConfigError, match="custom_losses was"):
        train(tmp_path, small(total_timesteps=128), custom_losses=[CustomLoss(calm, weight=0.2)])
    losses = [CustomLoss(calm, weight=0.1)]
    assert train(tmp_path, small(total_timesteps=128), custom_losses=losses).epoch == 4


@pytest.mark.filterwarnings("ignore:MettaTrainer is deprecated:DeprecationWarning")
def test_the_old_trainer_says_that_it_resumes_a_used_store(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path)
    first = MettaTrainer(small(), policy_store=store).train()
    with pytest.warns(MettaWarning, match="is complete at epoch 2"):
        again = MettaTrainer(small(), policy_store=store).train()
    assert again.metrics == pytest.approx(first.metrics, rel=0, abs=0, nan_ok=True)


def test_a_trainer_with_a_folder_says_that_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: Any = {"num_envs": 2, "horizon": 16, "hidden_size": 8, "checkpoint_dir": tmp_path}
    for _ in range(2):
        with PPOTrainer(None, "CartPole-v1", **settings) as trainer:
            capsys.readouterr()
            history = trainer.train(64)
    assert history == {}
    assert "this call of train() was completed before" in capsys.readouterr().err
    assert "policy_loss" in trainer.state.metrics


def test_retention_is_the_configured_one_when_the_functional_loop_saves(tmp_path: Path) -> None:
    config = small(keep_last=5, total_timesteps=160).trainer
    functional_training_loop(config, policy_store=PolicyStore(tmp_path))
    assert epochs(tmp_path) == [1, 2, 3, 4, 5]


def test_the_error_is_typed_when_a_checkpoint_does_not_fit(tmp_path: Path) -> None:
    functional_training_loop(small().trainer, policy_store=PolicyStore(tmp_path))
    with pytest.raises(ConfigError, match="num_envs was 2, now 4"):
        functional_training_loop(
            small(num_envs=4, total_timesteps=128).trainer, policy_store=PolicyStore(tmp_path)
        )


def test_evaluation_is_refused_when_it_would_play_in_the_training_environment(
    tmp_path: Path,
) -> None:
    env = gymnasium.make("CartPole-v1")
    trainer = Trainer(small(eval_episodes=2, num_envs=1), Curriculum(env=env), run_dir=tmp_path)
    with pytest.raises(ConfigError, match="evaluation needs its own environments"):
        trainer.setup()
    with Trainer(small(num_envs=1), Curriculum(env=env), run_dir=tmp_path / "off") as off:
        assert off.train().agent_step == 64


def test_a_trainer_says_so_when_it_was_cleaned_up() -> None:
    trainer = Trainer(small())
    trainer.train()
    trainer.cleanup()
    assert trainer.policy is not None
    with pytest.raises(StateError, match="was cleaned up; make a new one"):
        trainer.train()


def test_the_outcome_is_told_when_a_run_ends_in_any_way(tmp_path: Path) -> None:
    class Stop:
        def on_epoch_end(self, trainer_state: Any) -> None:
            trainer_state.request_stop("enough")

    class Fail:
        def on_epoch_end(self) -> None:
            raise ValueError("boom")

    def outcome(folder: Path) -> str:
        return list(read_events(folder / "events.jsonl"))[-1].payload["outcome"]

    train(tmp_path / "done", small())
    train(tmp_path / "stopped", small(), hooks=[Stop()])
    with pytest.raises(HookError):
        train(tmp_path / "failed", small(), hooks=[Fail()])
    assert [outcome(tmp_path / name) for name in ("done", "stopped", "failed")] == [
        "done",
        "stopped",
        "failed",
    ]


def test_a_goal_that_was_passed_is_refused_and_not_stored_when_a_run_goes_on(
    tmp_path: Path,
) -> None:
    train(tmp_path, small())
    with pytest.raises(ConfigError, match=r"nothing to do.* is at 64 steps already.*larger one"):
        train(tmp_path, small(total_timesteps=40))
    assert TrainingConfig.from_yaml(tmp_path / "config.yaml").trainer.total_timesteps == 64


def test_nobody_hears_of_a_checkpoint_when_none_is_written(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener:
        def on_checkpoint(self, checkpoint: Any) -> None:
            heard.append(checkpoint.uri)

    train(tmp_path, small(eval_episodes=2), hooks=[Listener()])
    assert [uri.rpartition("/")[2] for uri in heard] == [
        "epoch_000001",
        "epoch_000002",
        "epoch_000002.2",
    ]
    train(tmp_path, small(eval_episodes=2), hooks=[Listener()])
    assert len(heard) == 3


def test_settings_may_be_a_whole_mapping_when_a_trainer_is_made() -> None:
    trainer = Trainer({"agent": {"core": "gru"}, "trainer": {"gamma": 0.5}})
    assert (trainer.training_config.agent.core, trainer.config.ppo.gamma) == ("gru", 0.5)
    with pytest.raises(ConfigError, match="leave global_config out"):
        Trainer(small(), global_config=small())
