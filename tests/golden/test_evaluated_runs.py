"""Evaluating a run does not change it: every component has the same digest in every epoch."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faults.evaluation_kills import best_epoch, difference_of_scores
from faults.training import comparable_rows
from faults.trial import OK
from metta.errors import HookError, MettaWarning
from metta.loggers import read_events
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks import EvaluationHook, TrainerHook
from metta.rl.training_state import TrainerState
from metta.stateful import digest_of
from metta.store.checkpoints.late_scores import read_late_scores
from metta.store.policy_store import PolicyStore
from metta.testing.digests import NAMES_FILES, DigestHook, read_digests
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "total_timesteps": 160,
    "num_envs": 4,
    "horizon": 8,
    "update_epochs": 2,
    "num_minibatches": 2,
    "hidden_size": 8,
    "normalize_observations": True,
    "verbose": False,
    "checkpoint_interval": 2,
    "trainer.curriculum.kind": "learning_progress",
    "trainer.curriculum.tasks": {
        "short": {"max_episode_steps": 9},
        "long": {"max_episode_steps": 30},
    },
    "eval_episodes": 0,
}
EVALUATED = {"eval_episodes": 3, "evaluate_interval": 1, "suite": "classic"}
RECORDED = {"replay_interval": 1, "replay_max_steps": 5}
SCORES = "trainer_state"
"""The component that holds the scores."""


class Patient(TrainerHook):
    """Lets evaluations in the background end before the next epoch, so that scores arrive in each."""

    order = 30

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.num_arrivals = 0

    def on_epoch_end(self, trainer_state: TrainerState) -> None:
        self.num_arrivals += len(trainer_state.late_scores or ())
        for hook in self.trainer.hooks:
            if isinstance(hook, EvaluationHook) and hook._elsewhere is not None:
                hook._elsewhere.wait()


def generators() -> str:
    legacy = np.random.get_state()  # noqa: NPY002 (the legacy generator is what must not move)
    return digest_of([torch.get_rng_state(), legacy[1], legacy[2], repr(random.getstate())])


def trained(folder: Path, **more: Any) -> tuple[dict[int, list[dict[str, str]]], str]:
    """Digests of every epoch, and whether the generators of the process moved."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 (as above)
    torch.manual_seed(7)
    config = apply_settings(TrainingConfig(), {**SETTINGS, **more})
    with Trainer(config, run_dir=folder) as trainer:
        trainer.add_hook(DigestHook(folder / "digests.jsonl"))
        patient = Patient(trainer)
        trainer.add_hook(patient)
        state = trainer.train()
        assert patient.num_arrivals == (4 if "where" in more else 0)
        assert (state.epoch, state.eval_epoch) == (5, 5 if more else None)
        assert bool(state.eval_scores.simulation_scores) == bool(more)
    digests = read_digests(folder / "digests.jsonl")
    for lines in digests.values():
        for line in lines:
            del line[NAMES_FILES]
            del line["conditions"]  # which hold the settings
    return digests, generators()


@pytest.fixture(scope="module")
def unevaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    return trained(tmp_path_factory.mktemp("unevaluated"))


@pytest.mark.parametrize("more", [{}, RECORDED], ids=["evaluated", "recorded"])
def test_everything_but_the_scores_is_equal_when_each_epoch_is_evaluated(
    unevaluated: tuple[Any, str], tmp_path: Path, more: dict[str, Any]
) -> None:
    digests, after = trained(tmp_path, **EVALUATED, **more)
    assert after == unevaluated[1]
    assert len(list(tmp_path.glob("replays/*.replay"))) == (10 if more else 0)
    assert sorted(digests) == [1, 2, 3, 4, 5]
    for epoch, (found,) in digests.items():
        (expected,) = unevaluated[0][epoch]
        assert "curriculum" in expected
        different = {name for name in expected if found[name] != expected[name]}
        assert different == {SCORES}
        assert found.keys() == expected.keys()


def test_everything_is_equal_when_each_epoch_is_evaluated_in_the_background(
    unevaluated: tuple[Any, str], tmp_path: Path
) -> None:
    """Not even the scores are in what is saved, before the last epoch is over."""
    digests, after = trained(tmp_path, **EVALUATED, **RECORDED, where="process")
    assert (digests, after) == unevaluated
    assert len(list(tmp_path.glob("replays/*.replay"))) == 10


def test_the_best_policy_is_found_when_scores_came_after_their_checkpoints(tmp_path: Path) -> None:
    settings = {**SETTINGS, **EVALUATED, "where": "process", "checkpoint_interval": 1}
    with Trainer(apply_settings(TrainingConfig(), settings), run_dir=tmp_path) as trainer:
        trainer.add_hook(Patient(trainer))
        trainer.train()
    store = PolicyStore(tmp_path / "checkpoints")
    scored = [record for record in store.list() if "score" in record.metadata]
    # the newest are kept, of which the last was waited for
    assert {record.epoch for record in scored} >= {3, 4, 5}
    assert set(read_late_scores(tmp_path / "checkpoints")) >= {3, 4}
    best = max(scored, key=lambda one: (one.metadata["score"], one.epoch))
    found = store.best()
    assert found is not None
    assert found.epoch == best.epoch


class Failing(TrainerHook):
    order = 1000

    def on_epoch_end(self, trainer_state: TrainerState) -> None:
        if trainer_state.epoch == 3:
            raise RuntimeError("the machine room is on fire")


def evaluated(folder: Path, *, is_patient: bool = False, **more: Any) -> None:
    settings = {**SETTINGS, **EVALUATED, "checkpoint_interval": 1, "keep_last": 1, **more}
    with Trainer(apply_settings(TrainingConfig(), settings), run_dir=folder) as trainer:
        if is_patient:
            trainer.add_hook(Patient(trainer))
        trainer.train()


def scores_of(folder: Path) -> list[tuple[Any, ...]]:
    """All that count, without what only scores from the background have."""
    found = []
    for event in read_events(folder / "events.jsonl"):
        if event.kind == "run_start":
            found = [one for one in found if one[0] <= event.payload["from_epoch"]]
        elif event.kind == "evaluation":
            told = {k: v for k, v in event.payload["scores"].items() if k != "late_row"}
            found.append((event.payload["epoch"], event.payload["agent_step"], told))
    return found


@pytest.fixture(scope="module")
def background_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("background")
    evaluated(folder, where="process")
    return folder


def test_rows_and_columns_are_equal_whenever_scores_arrive(
    background_run: Path, tmp_path: Path
) -> None:
    evaluated(tmp_path, where="process", is_patient=True)
    assert difference_of_scores(background_run, tmp_path) == OK
    assert comparable_rows(background_run) == comparable_rows(tmp_path)
    rows = comparable_rows(tmp_path)
    assert [epoch for _, epoch, _ in rows] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [epoch for _, epoch, row in rows if "eval_training/score" in row] == [1, 2, 3, 4, 5]


def test_a_run_that_failed_is_resumed_with_all_its_scores(
    background_run: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, **EVALUATED, "checkpoint_interval": 1, "keep_last": 1}
    config = apply_settings(TrainingConfig(), {**settings, "where": "process"})
    with Trainer(config, run_dir=tmp_path) as trainer:
        trainer.add_hook(Failing())
        with pytest.raises(HookError, match="on fire"):
            trainer.train()
    evaluated(tmp_path, where="process")
    assert difference_of_scores(background_run, tmp_path, saves_at_stops=True) == OK
    assert comparable_rows(background_run) == comparable_rows(tmp_path)


def test_scores_from_the_background_equal_those_of_the_process_that_trains(
    background_run: Path, tmp_path: Path
) -> None:
    evaluated(tmp_path)
    assert scores_of(background_run) == scores_of(tmp_path)
    assert best_epoch(background_run) == best_epoch(tmp_path)


def test_scores_come_all_the_same_when_policies_cannot_be_kept(
    background_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "owed").write_text("in the way")
    with pytest.warns(MettaWarning, match="could not be kept until it is scored"):
        evaluated(tmp_path, where="process")
    assert scores_of(background_run) == scores_of(tmp_path)


class FailingAtTheEnd(TrainerHook):
    """Ends a run when its last scores are recorded, and before they are saved."""

    order = 1000

    def on_training_end(self) -> None:
        raise RuntimeError("the machine room is on fire")


def test_the_last_scores_are_recorded_once_when_a_run_fails_before_they_are_saved(
    tmp_path: Path,
) -> None:
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    evaluated(whole, evaluate_interval=0)
    settings = {**SETTINGS, **EVALUATED, "checkpoint_interval": 1, "evaluate_interval": 0}
    with Trainer(apply_settings(TrainingConfig(), settings), run_dir=failed) as trainer:
        trainer.add_hook(FailingAtTheEnd())
        with pytest.raises(HookError, match="on fire"):
            trainer.train()
    assert [one[0] for one in scores_of(failed)] == [5]
    evaluated(failed, evaluate_interval=0)
    assert scores_of(failed) == scores_of(whole)
    assert comparable_rows(failed) == comparable_rows(whole)
    assert best_epoch(failed) == best_epoch(whole)
