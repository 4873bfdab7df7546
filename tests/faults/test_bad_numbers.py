"""One bad number of some kinds; ``python -m faults.run --only bad_numbers`` injects hundreds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faults import bad_numbers
from faults.bad_number_sites import EPOCHS, SITES
from faults.training import trainer_of
from faults.trial import OK, Trial
from metta.loggers.sink import MetricRow
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint

CHOSEN = [
    "final observation", "custom loss for one epoch", "gradient of a weight", "logits",
    "optimizer's second moment", "custom loss's buffer", "recurrent state",
]  # fmt: skip


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad_numbers, "SITES", {name: SITES[name] for name in CHOSEN})
        return list(bad_numbers.trials(1, 1, tmp_path_factory.mktemp("bad_numbers")))


def test_no_checkpoint_is_bad_when_a_number_goes_bad_anywhere(trials: list[Trial]) -> None:
    assert [trial for trial in trials if trial.outcome != OK] == []


def test_every_site_was_hit_when_the_campaign_ran(trials: list[Trial]) -> None:
    assert [trial.point for trial in trials] == CHOSEN
    assert len(SITES) >= 20
    assert all(trial.detail["checkpoints"] >= 1 for trial in trials)
    went_on = {trial.point for trial in trials if trial.detail["code"] == 0}
    assert went_on == {"custom loss for one epoch"}


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        {"param_groups": [{"lr": math.inf}]},
        torch.tensor([1.0, -math.inf]),
        [np.array([np.nan])],
        {"scale": torch.tensor(1e29)},
    ],
)
def test_a_bad_number_is_found_when_it_is_anywhere_in_a_state(value: Any) -> None:
    assert list(
        bad_numbers.bad_numbers({"good": 1.0, "count": torch.ones(2), "bad": value}, "", 1e15)
    )


def test_nothing_is_found_when_all_numbers_are_good() -> None:
    state = {"a": 1.0, "b": torch.ones(2), "c": torch.tensor(2**62), "d": "nan", "e": [None, True]}
    assert list(bad_numbers.bad_numbers(state, "", 1e15)) == []


def row(epoch: int, skipped: float) -> MetricRow:
    return MetricRow(epoch, epoch, {"losses/skipped_steps": skipped})


@pytest.mark.parametrize(
    ("site", "code", "said", "skipped", "ended", "problem"),
    [
        ("reward", 1, "metta: EnvError: reward of row 0 is nan at step 3", 0, "failed", ""),
        ("reward", 0, "done", 0, "done", "exit code 0"),
        ("reward", 1, "metta: EnvError: row 2 fell over", 0, "failed", "said"),
        ("reward", 1, "Traceback\nEnvError: reward of row 0 is nan at step 3", 0, "failed", "said"),
        ("reward", 1, "metta: EnvError: reward of row 0 is nan at step 3", 0, "done", "event log"),
        ("custom loss for one epoch", 0, "done", 4, "done", ""),
        ("custom loss for one epoch", 0, "done", 0, "done", "no step was skipped"),
        ("custom loss for one epoch", 1, "metta: NonFiniteError", 4, "failed", "exit code 1"),
    ],
)  # fmt: skip
def test_an_end_is_wrong_when_it_does_not_say_what_happened(
    tmp_path: Path, site: str, code: int, said: str, skipped: float, ended: str, problem: str
) -> None:
    event = '{{"run": "a", "sequence": 1, "time": 0, "kind": "run_end", "payload": {{"outcome": "{}"}}}}\n'
    (tmp_path / "events.jsonl").write_text(event.format(ended))
    found = bad_numbers.wrong_end(SITES[site], code, said, [row(EPOCHS, skipped)], tmp_path)
    assert found.startswith(problem) or problem in found
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("site", "newest", "is_right"),
    [("reward", 5, True), ("reward", 4, False), ("weight", 3, True), ("weight", 2, True),
     ("weight", 1, False), ("weight", 4, False)],
)  # fmt: skip
def test_the_newest_checkpoint_is_wrong_when_it_is_too_old_or_was_poisoned(
    site: str, newest: int, is_right: bool
) -> None:
    found = bad_numbers.wrong_newest(SITES[site], healthy=3, newest=newest, last_row=5, interval=1)
    assert (found == "") == is_right


@pytest.mark.parametrize(
    ("num_envs", "horizon", "num_minibatches"), [(1, 1, 1), (3, 1, 2), (1, 5, 2), (2, 2, 4)]
)
def test_nothing_becomes_nan_when_minibatches_have_one_sample(
    tmp_path: Path, num_envs: int, horizon: int, num_minibatches: int
) -> None:
    sizes = {"num_envs": num_envs, "horizon": horizon, "num_minibatches": num_minibatches}
    total = 3 * num_envs * horizon
    with trainer_of("mlp-normalised", tmp_path, total_timesteps=total, **sizes) as trainer:
        trainer.train()
        assert trainer.state.metrics["skipped_steps"] == 0
    entries = list_checkpoints(tmp_path / "checkpoints")
    saved = [read_checkpoint(entry.path) for entry in entries]
    assert [checkpoint.epoch for checkpoint in saved] == [1, 2, 3]
    assert bad_numbers.wrong_numbers(saved) == ""
