"""`PPOTrainer.save` and `load`, and scripts that are simply run again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from metta.errors import CheckpointError, ConfigError, RunLockedError
from metta.rl.hooks.base import TrainerHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.store.checkpoints.files import list_checkpoints

SETTINGS: dict[str, Any] = {
    "num_envs": 4,
    "horizon": 8,
    "hidden_size": 8,
    "update_epochs": 1,
    "lr_schedule": "linear",
}
EPOCH = 32


def trainer_of(env: Any = "CartPole-v1", **more: Any) -> PPOTrainer:
    return PPOTrainer(None, env, **{**SETTINGS, **more})


class CrashError(Exception):
    """A power cut, as far as a process can tell."""


class CrashAfter(TrainerHook):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_start(self, trainer_state: Any) -> None:
        if trainer_state.epoch == self.epoch:
            raise CrashError


def digests_of(trainer: PPOTrainer) -> dict[str, str]:
    """All but what names files, and settings that may change."""
    left_out = ("policy_tracker", "conditions")
    return {k: v for k, v in trainer.registry.digests().items() if k not in left_out}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    with trainer_of(checkpoint_dir=folder) as trainer:
        trainer.train(3 * EPOCH)
        trainer.train(5 * EPOCH)
        return digests_of(trainer)


@pytest.mark.parametrize("epoch", [1, 2, 4, 6])
@pytest.mark.parametrize("interval", [1, 3, 50])
def test_a_script_goes_on_where_it_was_when_it_is_run_again(
    tmp_path: Path, epoch: int, interval: int, undisturbed: dict[str, str]
) -> None:
    """Two calls of `train`, a crash in one of them, and the same script once more."""

    def script(*hooks: Any) -> dict[str, str]:
        options: Any = {"checkpoint_dir": tmp_path, "checkpoint_interval": interval}
        options["rescue_share"] = 1.0
        with trainer_of(**options) as trainer:
            histories = [
                trainer.train(3 * EPOCH, hooks=hooks),
                trainer.train(5 * EPOCH, hooks=hooks),
            ]
            lengths = [len(history.get("epoch", [])) for history in histories]
            assert sum(lengths) == 8 - (0 if hooks else epoch)
            return digests_of(trainer)

    with pytest.raises(Exception, match="Crash"):
        script(CrashAfter(epoch))
    assert script() == undisturbed
    with trainer_of(checkpoint_dir=tmp_path) as trainer:  # and once more: it is done
        assert trainer.train(3 * EPOCH) == trainer.train(5 * EPOCH) == {}
        assert digests_of(trainer) == undisturbed


def test_everything_comes_back_when_a_trainer_is_saved_and_loaded(tmp_path: Path) -> None:
    with trainer_of(core="lstm") as first, trainer_of(core="lstm") as second:
        first.train(2 * EPOCH)
        path = first.save(tmp_path)
        assert path == tmp_path / "epoch_000002"
        second.load(path)
        assert digests_of(second) == digests_of(first)
        first.train(2 * EPOCH)
        second.train(2 * EPOCH)  # two more epochs, of a call of its own
        assert digests_of(second) == digests_of(first)
        assert first.save(tmp_path) == tmp_path / "epoch_000004"
        second.load(tmp_path)
        assert second.state.epoch == 4


def test_episodes_go_on_when_a_trainer_goes_back_to_what_it_saved(tmp_path: Path) -> None:
    with trainer_of() as trainer:
        trainer.train(2 * EPOCH)
        trainer.save(tmp_path)
        expected = trainer.collect_rollouts()
        trainer.load(tmp_path)
        again = trainer.collect_rollouts()
    assert all(torch.equal(expected[name], again[name]) for name in expected)


def test_nothing_is_lost_when_there_is_nowhere_to_save_or_nothing_to_load(tmp_path: Path) -> None:
    with trainer_of() as trainer:
        with pytest.raises(ConfigError, match="no checkpoint_dir"):
            trainer.save()
        with pytest.raises(ConfigError, match="no checkpoint_dir"):
            trainer.load()
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            trainer.load(tmp_path)
        trainer.train(EPOCH)
        trainer.save(tmp_path)
    with trainer_of(hidden_size=16) as other, pytest.raises(ConfigError, match="hidden_size was 8"):
        other.load(tmp_path)


def test_the_configured_checkpoints_are_made_when_a_trainer_has_a_folder(tmp_path: Path) -> None:
    with trainer_of(checkpoint_dir=tmp_path, checkpoint_interval=2, keep_last=2) as trainer:
        trainer.train(5 * EPOCH)
        assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [4, 5]
        assert trainer.save().name == "epoch_000005.2"


def test_the_epoch_before_is_saved_when_training_fails(tmp_path: Path) -> None:
    options: Any = {"checkpoint_interval": 50, "rescue_share": 1.0}
    with trainer_of(checkpoint_dir=tmp_path, **options) as trainer:
        with pytest.raises(Exception, match="Crash"):
            trainer.train(5 * EPOCH, hooks=[CrashAfter(3)])
        assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [3]


class StopAfter(TrainerHook):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, trainer_state: Any) -> None:
        if trainer_state.epoch == self.epoch:
            trainer_state.request_stop("enough")


def test_a_call_that_a_hook_ended_is_over_when_the_script_is_run_again(tmp_path: Path) -> None:
    def script(folder: Path, *hooks: Any) -> dict[str, str]:
        with trainer_of(checkpoint_dir=folder) as trainer:
            trainer.train(8 * EPOCH, hooks=[StopAfter(2)])
            trainer.train(3 * EPOCH, hooks=hooks)
            assert trainer.state.epoch == 5
            return digests_of(trainer)

    expected = script(tmp_path / "whole")
    with pytest.raises(Exception, match="Crash"):
        script(tmp_path / "killed", CrashAfter(2))
    assert script(tmp_path / "killed") == expected


def test_calls_are_new_ones_when_something_else_is_loaded(tmp_path: Path) -> None:
    with trainer_of(checkpoint_dir=tmp_path / "a") as trainer:
        for _ in range(3):
            trainer.train(EPOCH)
        saved = trainer.save(tmp_path / "b")
    with trainer_of(checkpoint_dir=tmp_path / "a") as trainer:
        trainer.load(saved)
        assert len(trainer.train(EPOCH)["epoch"]) == 1


def test_a_second_trainer_is_refused_when_one_saves_in_the_folder(tmp_path: Path) -> None:
    class Intrude(TrainerHook):
        def on_epoch_start(self) -> None:
            with (
                trainer_of(checkpoint_dir=tmp_path) as other,
                pytest.raises(RunLockedError, match="in use by another trainer"),
            ):
                other.train(EPOCH)

    with trainer_of(checkpoint_dir=tmp_path) as trainer:
        trainer.train(EPOCH, hooks=[Intrude()])
    with trainer_of(checkpoint_dir=tmp_path) as trainer:
        trainer.train(EPOCH)


def test_both_are_saved_when_a_hook_saves_while_another_save_is_under_way(tmp_path: Path) -> None:
    class SaveToo(TrainerHook):
        order = 99

        def on_epoch_start(self) -> None:
            trainer.save()

    with trainer_of(checkpoint_dir=tmp_path, checkpoint_interval=1, keep_last=50) as trainer:
        trainer.train(4 * EPOCH, hooks=[SaveToo()])
    assert {entry.epoch for entry in list_checkpoints(tmp_path)} == {0, 1, 2, 3, 4}
