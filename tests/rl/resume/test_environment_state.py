"""Environments come back with a checkpoint, or the run says that they do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faults.saved_envs import SavedCartPole
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, MettaWarning, StateError
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.environment_state import EnvironmentState
from metta.state_tree import copy_state
from metta.stateful import digest_of

SETTINGS: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden_size": 8, "update_epochs": 1}


def trainer_of(env: Any = "CartPole-v1", **more: Any) -> PPOTrainer:
    return PPOTrainer(None, env, **{**SETTINGS, **more})


def environments_of(trainer: PPOTrainer) -> EnvironmentState:
    found: EnvironmentState = trainer.registry.get("environments")
    return found


class Forgetful(CorridorEnv):
    """Begins somewhere else in every life, whatever the seed: nothing can bring it back."""

    lives = 0

    def reset(self, **options: Any) -> Any:
        Forgetful.lives += 1
        observation, info = super().reset(**options)
        return observation + np.float32(Forgetful.lives), info


class Bare:
    """A vector environment of one's own, without any state methods."""

    def __init__(self, env: SerialVecEnv) -> None:
        self._env = env
        for name in ("observation_space", "action_space", "obs_spec", "num_rows", "num_groups"):
            setattr(self, name, getattr(env, name))
        self.mask_size = env.mask_size
        self.reset, self.send, self.recv = env.reset, env.send, env.recv
        self.close = env.close

    @property
    def num_resets(self) -> int:
        return self._env.num_resets


@pytest.mark.parametrize("wanted", ["auto", "snapshot", "repeat"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_episodes_go_on_in_another_trainer_when_the_state_is_restored(
    wanted: Any, core: str
) -> None:
    with (
        trainer_of(SavedCartPole, core=core) as first,
        trainer_of(SavedCartPole, core=core) as second,
    ):
        for trainer in (first, second):
            environments_of(trainer).prepare(wanted)
        second.collect_rollouts()  # it stands elsewhere
        first.train(64)
        second.registry.restore(copy_state(first.registry.snapshot()))
        assert first.registry.digests() == second.registry.digests()
        expected, found = first.collect_rollouts(), second.collect_rollouts()
        assert torch.equal(expected["observations"], found["observations"])
        assert not bool(found["episode_starts"][0].all())


def test_the_continuation_is_equal_when_the_seed_is_too() -> None:
    with trainer_of() as first, trainer_of() as second:
        for trainer in (first, second):
            environments_of(trainer).prepare()
        first.train(64)
        second.registry.restore(copy_state(first.registry.snapshot()))
        assert digest_of(first.collect_rollouts()) == digest_of(second.collect_rollouts())


def test_fresh_episodes_begin_with_a_warning_when_environments_show_something_else() -> None:
    with trainer_of(Forgetful) as first, trainer_of(Forgetful) as second:
        environments_of(first).prepare("boundary")
        first.train(64)
        snapshot = copy_state(first.registry.snapshot())
        # as if the environments had been of class repeat when they were saved
        carried = first.collector.state_dict()["carry"]["obs"]
        num_rows = len(next(iter(carried.values())))
        snapshot["environments"]["state"] = {
            "class": "repeat",
            "seeds": np.arange(num_rows),
            "episodes": np.zeros(num_rows, np.int64),
            "lengths": np.zeros(num_rows, np.int64),
            "actions": np.zeros(0, np.int64),
        }
        with pytest.warns(MettaWarning, match="could not be restored"):
            second.registry.restore(snapshot)
        assert environments_of(second).num_boundaries == 1
        assert bool(second.collect_rollouts()["episode_starts"][0].all())


def test_the_class_is_boundary_when_nothing_was_prepared() -> None:
    with trainer_of() as first, trainer_of() as second:
        first.train(64)
        assert environments_of(first).state_dict() == {"class": "boundary"}
        second.registry.restore(copy_state(first.registry.snapshot()))
        assert environments_of(second).num_boundaries == 1
        assert bool(second.collect_rollouts()["episode_starts"][0].all())


def test_an_own_vector_environment_is_of_class_boundary_when_it_has_no_state() -> None:
    with trainer_of(Bare(SerialVecEnv([CorridorEnv] * 2))) as trainer:
        promise = environments_of(trainer).prepare()
        assert promise.restore_class == "boundary"
        assert "Bare" in promise.describe()
    with (
        trainer_of(Bare(SerialVecEnv([CorridorEnv] * 2))) as trainer,
        pytest.raises(ConfigError, match="env_restore='repeat' needs"),
    ):
        environments_of(trainer).prepare("repeat")


def test_episodes_end_at_the_checkpoint_when_they_are_reset_in_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_interval": 2, "env_restore": "sync_reset"}
    with trainer_of(checkpoint_dir=tmp_path, **settings) as trainer:
        starts = []

        def note(state: Any, _: Any) -> None:
            starts.append(bool(trainer.collector.experience.starts[0].all()))

        trainer.train(5 * 32, on_epoch_end=note)
        promise = environments_of(trainer).support
        assert promise is not None
        assert promise.restore_class == "sync_reset"
    assert starts == [True, False, True, False, True]  # fresh after epochs 2 and 4


def test_it_is_said_when_a_run_in_step_goes_on_from_between_its_checkpoints(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_interval": 2, "env_restore": "sync_reset"}
    with trainer_of(checkpoint_dir=tmp_path, **settings) as trainer:
        trainer.train(3 * 32)  # the last checkpoint is one of no interval
    with (
        pytest.warns(MettaWarning, match="between the checkpoints of its interval"),
        trainer_of(checkpoint_dir=tmp_path, **settings) as trainer,
    ):
        assert environments_of(trainer).num_boundaries == 1


class Refusing(SavedCartPole):
    """Will not take its state back, once it is told so."""

    refuses = False

    def set_state(self, state: Any) -> None:
        if Refusing.refuses:
            raise RuntimeError("not this one")
        super().set_state(state)


def test_fresh_episodes_begin_with_a_warning_when_an_environment_refuses_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with trainer_of(Refusing) as first, trainer_of(Refusing) as second:
        for trainer in (first, second):
            assert environments_of(trainer).prepare().restore_class == "snapshot"
        first.train(64)
        monkeypatch.setattr(Refusing, "refuses", True)
        with pytest.warns(MettaWarning, match=r"could not be restored.*not this one"):
            second.registry.restore(copy_state(first.registry.snapshot()))
        assert environments_of(second).num_boundaries == 1
        assert bool(second.collect_rollouts()["episode_starts"][0].all())


def _read_by_an_older_version(snapshot: Any) -> Any:
    """Rows as they were when attributes of environments were read."""
    rows = [
        {"seed": row, "episode": 0, "env": {"kind": "object", "type": "CartPoleEnv"}}
        for row in range(SETTINGS["num_envs"])
    ]
    snapshot["environments"]["state"] = {"class": "snapshot", "rows": rows}
    return snapshot


def test_the_way_out_works_when_an_older_version_read_the_environments() -> None:
    with trainer_of() as first, trainer_of() as second, trainer_of() as third:
        first.train(64)
        snapshot = _read_by_an_older_version(copy_state(first.registry.snapshot()))
        with pytest.raises(StateError, match=r"older versions of metta.*env_restore=boundary"):
            second.registry.restore(snapshot)
        environments_of(third).prepare("boundary")
        third.registry.restore(snapshot)
        assert environments_of(third).num_boundaries == 1
        assert bool(third.collect_rollouts()["episode_starts"][0].all())


def test_episodes_go_on_when_they_were_saved_under_the_class_s_old_name() -> None:
    with trainer_of() as first, trainer_of() as second:
        environments_of(first).prepare()
        first.train(64)
        snapshot = copy_state(first.registry.snapshot())
        assert snapshot["environments"]["state"]["class"] == "repeat"
        snapshot["environments"]["state"]["class"] = "replay"
        second.registry.restore(snapshot)
        assert digest_of(first.collect_rollouts()) == digest_of(second.collect_rollouts())
