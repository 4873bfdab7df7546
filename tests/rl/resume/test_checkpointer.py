"""A run that is saved and put back is the same run."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import CheckpointError, ConfigError, MettaWarning, NonFiniteError
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.checkpointer import CheckpointManager, PendingCheckpoint, TrainingCheckpointer
from metta.stateful import digest_of
from metta.store.checkpoints.files import read_checkpoint
from metta.store.checkpoints.finite_state import require_finite
from metta.store.policy_store import PolicyStore, spaces_of

SMALL = {"num_envs": 2, "horizon": 16, "bptt_horizon": 4, "hidden_size": 8, "update_epochs": 1}


class Bonus(nn.Module):
    """A loss with weights and a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, new_values: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(new_values.reshape(-1, 1)).square().mean()


KINDS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "lstm": {"core": "lstm"},
    "gru": {"core": "gru", "trainer.optimizer.name": "adamw"},
    "sgd": {"trainer.optimizer.name": "sgd", "momentum": 0.9},
    "normalised": {"normalize_observations": True, "normalize_returns": True},
    "loss": {"custom_losses": [Bonus]},
    "schedules": {"lr_schedule": "adaptive_kl", "clip_schedule": "linear"},
}


@contextlib.contextmanager
def trainer_of(kind: str = "mlp", seed: int = 1, **more: Any) -> Iterator[PPOTrainer]:
    settings = {**SMALL, **KINDS[kind], **more}
    losses = [make() for make in settings.pop("custom_losses", [])]
    with PPOTrainer(None, CorridorEnv, seed=seed, custom_losses=losses, **settings) as trainer:
        yield trainer


def taken(manager: TrainingCheckpointer, trainer: PPOTrainer, **metadata: Any) -> PendingCheckpoint:
    return manager.snapshot(trainer.registry, trainer.policy, trainer.state, metadata)


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_returns_when_a_run_is_restored_in_a_new_trainer(
    tmp_path: Path, kind: str
) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of(kind) as first:
        first.train(96)
        manager.commit(taken(manager, first))
        expected, data = first.digest(), first.collect_rollouts()
        losses = first.learn(data)
        learned = first.policy.parameter_hash()
    with trainer_of(kind) as second:
        second.train(32)
        assert second.digest() != expected
        checkpoint = manager.load_trainer_state()
        assert checkpoint is not None
        manager.restore(second.registry, checkpoint)
        assert second.digest() == expected
        assert (second.state.epoch, second.state.agent_step) == (3, 96)
    with trainer_of(kind) as third:  # the same seed: minibatches are drawn alike
        manager.restore(third.registry, checkpoint)
        assert third.learn(data) == losses
        assert third.policy.parameter_hash() == learned


def test_a_checkpoint_holds_every_component_when_it_is_read(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of("loss") as trainer:
        trainer.train(32)
        record = manager.commit(taken(manager, trainer, score=1.5))
        checkpoint = read_checkpoint(tmp_path / "epoch_000001")
        assert set(checkpoint.snapshot) == set(trainer.registry.names())
        found = {name: digest_of(part["state"]) for name, part in checkpoint.snapshot.items()}
        assert found == trainer.registry.digests()
        assert digest_of(checkpoint.optimizer_state) == digest_of(trainer.optimizer.state_dict())
    assert record.uri == (tmp_path / "epoch_000001").as_uri()
    assert (record.epoch, record.agent_step, record.metadata["score"]) == (1, 32, 1.5)


def test_the_moment_of_the_snapshot_is_written_when_training_went_on(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of("lstm") as trainer:
        trainer.train(32)
        pending, expected = taken(manager, trainer), trainer.registry.digests()
        assert pending.uri == (tmp_path / "epoch_000001").as_uri()
        assert not any(tmp_path.iterdir())
        trainer.train(64)
        assert manager.commit(pending).uri == pending.uri
    snapshot = read_checkpoint(tmp_path / "epoch_000001").snapshot
    assert {name: digest_of(part["state"]) for name, part in snapshot.items()} == expected


def test_restoring_a_checkpoint_of_another_run_names_the_difference(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of("loss") as trainer:
        manager.commit(taken(manager, trainer))
    checkpoint = manager.load_trainer_state()
    assert checkpoint is not None
    with trainer_of() as other, pytest.raises(ConfigError, match=r"custom_losses was .*'Bonus'"):
        manager.restore(other.registry, checkpoint)
    with trainer_of("loss", seed=2) as other, pytest.raises(ConfigError, match="seed was 1, now 2"):
        manager.restore(other.registry, checkpoint)


def test_a_policy_with_nan_is_not_taken_when_training_diverged(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of() as trainer:
        with torch.no_grad():
            next(trainer.policy.parameters()).fill_(float("nan"))
        with pytest.raises(NonFiniteError):
            taken(manager, trainer)
    assert not any(tmp_path.iterdir())


def test_numbers_are_looked_through_once_when_a_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    for module in ("metta.rl.resume.checkpointer", "metta.store.checkpoints.files"):
        monkeypatch.setattr(
            f"{module}.require_finite",
            lambda snapshot, epoch: looked.append(epoch) or require_finite(snapshot, epoch),
        )
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of() as trainer:
        manager.commit(taken(manager, trainer))
    assert len(looked) == 1


def test_old_checkpoints_go_when_newer_ones_are_committed(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep_last=1, keep_every=4)
    with trainer_of() as trainer:
        for epoch in range(1, 7):
            trainer.state.epoch = epoch
            score = 9.0 if epoch == 2 else 1.0
            manager.commit(taken(manager, trainer, score=score))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch_000002", "epoch_000004", "epoch_000006"]


def test_a_commit_stands_with_a_warning_when_old_ones_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    manager = TrainingCheckpointer(tmp_path)
    monkeypatch.setattr("metta.rl.resume.checkpointer.prune_checkpoints", fail)
    with trainer_of() as trainer, pytest.warns(MettaWarning, match="could not be removed"):
        record = manager.commit(taken(manager, trainer))
    assert record.epoch == read_checkpoint(tmp_path / "epoch_000000").epoch == 0


@pytest.mark.parametrize("rule", [{"keep_last": 0}, {"keep_every": -1}])
def test_a_config_error_is_raised_when_nothing_would_be_kept(
    tmp_path: Path, rule: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match="keep_last"):
        TrainingCheckpointer(tmp_path, **rule)


# The two calls, one for the policy and one for the rest.


@pytest.mark.parametrize("with_registry", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_one_checkpoint_holds_both_when_policy_and_trainer_state_are_saved(
    tmp_path: Path, kind: str, with_registry: bool
) -> None:
    with trainer_of(kind) as trainer:
        checkpointer = TrainingCheckpointer(
            tmp_path / "checkpoints",
            PolicyStore(tmp_path / "policies"),
            None,
            registry=trainer.registry if with_registry else None,
        )
        assert checkpointer.load_trainer_state(tmp_path) is None
        trainer.train(32)
        policy, optimizer, env = trainer.policy, trainer.optimizer, trainer.env
        policy_record = checkpointer.save_policy(policy, 1, {"score": 1.0, "agent_step": 32})
        assert PolicyStore(tmp_path / "policies").list() == [policy_record]
        path = checkpointer.save_trainer_state(32, 1, optimizer.state_dict(), tmp_path)
        assert path == tmp_path / "checkpoints" / "epoch_000001"

        checkpoint = checkpointer.load_trainer_state(tmp_path)
        assert checkpoint is not None
        assert (checkpoint.agent_step, checkpoint.epoch, checkpoint.path) == (32, 1, path)
        assert digest_of(checkpoint.optimizer_state) == digest_of(optimizer.state_dict())
        policy_record = checkpointer.load_policy(checkpoint, env)
        assert policy_record.policy is not policy
        assert policy_record.policy is not None
        assert policy_record.policy.parameter_hash() == policy.parameter_hash()
        assert policy_record.metadata["score"] == 1.0
        if with_registry:
            expected = trainer.digest()
            with trainer_of(kind) as other:
                checkpointer.restore(other.registry, checkpoint)
                assert other.digest() == expected


def test_state_goes_to_the_checkpoint_folder_when_no_run_is_named(tmp_path: Path) -> None:
    checkpointer = TrainingCheckpointer(tmp_path)
    with trainer_of() as trainer:
        record = checkpointer.save_policy(trainer.policy, 5)
        path = checkpointer.save_trainer_state(10, 5, trainer.optimizer.state_dict())
    assert path == tmp_path / "epoch_000005"
    assert checkpointer.policy_store.find(record.uri) == record  # both stay


@pytest.mark.parametrize("saved", [None, 4])
def test_a_checkpoint_error_asks_for_the_policy_when_it_was_not_saved(
    tmp_path: Path, saved: int | None
) -> None:
    checkpointer = TrainingCheckpointer(tmp_path)
    with trainer_of() as trainer:
        if saved is not None:
            checkpointer.save_policy(trainer.policy, saved, {})
        with pytest.raises(CheckpointError, match=r"call save_policy\(policy, 5, metadata\) first"):
            checkpointer.save_trainer_state(0, 5, trainer.optimizer.state_dict(), tmp_path)


@pytest.mark.parametrize("env", ["CartPole-v1", CorridorEnv(), make_vec_env(CorridorEnv)])
def test_a_policy_of_the_default_agent_loads_when_no_settings_were_saved(
    tmp_path: Path, env: Any
) -> None:
    with PPOTrainer(None, env, num_envs=1, horizon=8) as trainer:
        checkpointer = TrainingCheckpointer(tmp_path)
        checkpointer.save_policy(trainer.policy, 1)
        checkpointer.save_trainer_state(0, 1, trainer.optimizer.state_dict())
        checkpoint = checkpointer.load_trainer_state()
        assert checkpoint is not None
        found = checkpointer.load_policy(checkpoint, env).policy
        assert found is not None
        assert found.parameter_hash() == trainer.policy.parameter_hash()


def test_settings_are_not_saved_when_the_network_is_ones_own(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            out = self.layer(obs)
            return out[..., :2], out[..., 2]

    policy = Policy(Net(), *spaces_of(CorridorEnv))
    with PPOTrainer(policy, CorridorEnv, num_envs=1, horizon=8) as trainer:
        checkpointer = TrainingCheckpointer(tmp_path)
        assert "agent" not in checkpointer.commit(taken(checkpointer, trainer)).metadata
        checkpoint = checkpointer.load_trainer_state()
        assert checkpoint is not None
        other = Policy(Net(), *spaces_of(CorridorEnv))
        assert checkpointer.load_policy(checkpoint, None, other).policy is other
        assert other.parameter_hash() == policy.parameter_hash()


# Fresh episodes.


def test_training_goes_on_with_other_episodes_when_a_run_is_restored(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)

    def resumed() -> tuple[str, Tensor]:
        with PPOTrainer(None, "CartPole-v1", **SMALL, core="lstm") as trainer:
            checkpoint = manager.load_trainer_state()
            assert checkpoint is not None
            manager.restore(trainer.registry, checkpoint)
            data = trainer.collect_rollouts()
            assert bool(data["episode_starts"][0].all())
            trainer.learn(data)
            return trainer.digest(), data["observations"][0]

    with PPOTrainer(None, "CartPole-v1", **SMALL, core="lstm") as first:
        start = first.collect_rollouts()["observations"][0]
        first.train(64)
        manager.commit(taken(manager, first))
        carried = first.collect_rollouts()["observations"][0]
    (one, begun), (two, _) = resumed(), resumed()
    assert one == two  # two resumes of one checkpoint agree
    assert not torch.equal(begun, start)
    assert not torch.equal(begun, carried)


# Weights & Biases.


def test_a_policy_waits_in_the_run_folder_when_wandb_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-data"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of wandb's own
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        run = wandb.init(mode="offline", dir=tmp_path, project="tests", settings=settings)
        manager = TrainingCheckpointer(tmp_path / "checkpoints", None, run)
        try:
            with trainer_of() as trainer:
                record = manager.commit(taken(manager, trainer))
            uri = manager.upload(record)
        finally:
            run.finish()
            wandb.teardown()
    assert uri == f"wandb://tests/policy-{run.id}:epoch_000000"
    assert manager.latest_wandb_uri == uri
    staged = [path for path in (tmp_path / "wandb-data").rglob("*") if path.is_file()]
    saved = (tmp_path / "checkpoints" / "epoch_000000" / "policy.safetensors").read_bytes()
    assert any(path.read_bytes() == saved for path in staged)


def test_a_config_error_is_raised_when_there_is_no_wandb_run(tmp_path: Path) -> None:
    manager = TrainingCheckpointer(tmp_path)
    with trainer_of() as trainer:
        record = manager.commit(taken(manager, trainer))
    with pytest.raises(ConfigError, match="no W&B run"):
        manager.upload(record)


def test_the_last_save_of_an_epoch_is_the_newest_also_when_older_ones_were_removed(
    tmp_path: Path,
) -> None:
    with trainer_of(checkpoint_dir=tmp_path, keep_last=1) as trainer:
        for value in (1.0, 2.0, 3.0, 4.0):
            with torch.no_grad():
                for parameter in trainer.policy.parameters():
                    parameter.fill_(value)
            trainer.save()
    with trainer_of(checkpoint_dir=tmp_path, keep_last=1) as again:
        assert {float(parameter.detach().mean()) for parameter in again.policy.parameters()} == {
            4.0
        }


def test_old_checkpoints_go_when_a_script_loads_and_saves_by_hand(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        manager = TrainingCheckpointer(tmp_path, keep_last=2)
        manager.load_trainer_state()
        with trainer_of() as trainer:
            manager.save_policy(trainer.policy, epoch, {"agent_step": epoch})
            manager.save_trainer_state(epoch, epoch, trainer.optimizer.state_dict())
    kept = sorted(path.name for path in tmp_path.glob("epoch_*") if path.is_dir())
    assert kept == ["epoch_000003", "epoch_000004"]


def test_the_run_keeps_its_id_when_another_checkpointer_restores_it(tmp_path: Path) -> None:
    first, second = CheckpointManager(tmp_path), CheckpointManager(tmp_path / "other")
    with trainer_of() as trainer:
        first.commit(taken(first, trainer))
        checkpoint = first.load_trainer_state()
        assert checkpoint is not None
        assert second.run_id != first.run_id
        second.restore(trainer.registry, checkpoint)
    assert second.run_id == first.run_id
