import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metta import PPOTrainer, describe_rollout
from metta.envs.toy import CountdownEnv, NestedEnv
from metta.errors import RolloutError


def rollout() -> dict[str, Tensor]:
    """Four steps of two rows: row 0 ends at steps 1 (terminated) and 3 (cut), row 1 never."""
    return {
        "rewards": torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]),
        "terminated": torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]], dtype=torch.bool),
        "truncated": torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0]], dtype=torch.bool),
        "values": torch.tensor(
            [[0.5, -1.0], [math.nan, math.nan], [math.inf, 2.0], [-math.inf, 1.0]]
        ),
        "actions": torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]]),
    }


def test_counts_and_episodes_are_the_known_ones_when_a_rollout_is_described() -> None:
    report = describe_rollout(rollout())
    assert (report.num_steps, report.num_rows, report.num_valid) == (4, 2, 8)
    assert (report.num_terminated, report.num_truncated) == (1, 1)
    # row 0: 1 + 2, then 3 + 4; row 1 has no end
    assert report.episode_returns == (3.0, 7.0)
    assert report.episode_lengths == (2, 2)


def test_ranges_leave_nan_and_infinity_out_when_they_occur() -> None:
    column = describe_rollout(rollout()).columns["values"]
    assert (column.num_nan, column.num_inf) == (2, 2)
    assert (column.minimum, column.maximum) == (-1.0, 2.0)
    assert column.mean == pytest.approx((0.5 - 1.0 + 2.0 + 1.0) / 4)


def test_integers_and_flags_have_ranges_when_they_are_described() -> None:
    columns = describe_rollout(rollout()).columns
    assert (columns["actions"].minimum, columns["actions"].maximum) == (0.0, 7.0)
    assert columns["actions"].dtype == "int64"
    assert columns["terminated"].mean == 0.125
    assert columns["rewards"].shape == (4, 2)


def test_invalid_steps_do_not_count_when_rows_are_masked() -> None:
    data = rollout()
    data["valid"] = torch.tensor([[1, 1], [1, 1], [0, 1], [1, 0]], dtype=torch.bool)
    report = describe_rollout(data)
    assert report.num_valid == 6
    assert report.episode_returns == (3.0, 4.0)
    assert report.episode_lengths == (2, 1)


def test_an_end_does_not_count_when_its_step_was_not_taken() -> None:
    data = rollout() | {"valid": torch.ones(4, 2, dtype=torch.bool)}
    data["valid"][3, 0] = False
    report = describe_rollout(data)
    assert (report.num_terminated, report.num_truncated) == (1, 0)
    assert report.episode_returns == (3.0,)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({}, "column 'values' holds 2 NaN and 2 infinite values"),
        ({"rewards": torch.zeros(4, 2)}, "every reward is 0"),
        ({"advantages": torch.ones(4, 2)}, "every advantage is the same"),
    ],
)
def test_a_warning_is_in_the_report_when_data_looks_wrong(
    changes: dict[str, Tensor], warning: str
) -> None:
    report = describe_rollout(rollout() | changes)
    assert any(warning in found for found in report.warnings)
    assert f"warning: {warning}" in str(report)


def test_there_is_no_warning_when_data_is_sound() -> None:
    data = rollout() | {"values": torch.randn(4, 2), "advantages": torch.randn(4, 2)}
    assert describe_rollout(data).warnings == ()


def test_a_table_is_printed_when_the_report_is_text() -> None:
    lines = str(describe_rollout(rollout())).splitlines()
    assert lines[0] == "rollout of 4 steps x 2 rows, 8 valid; 1 terminated, 1 truncated"
    assert lines[1] == "2 episodes ended: return 5 (min 3, max 7), length 2"
    assert lines[2].split() == ["column", "shape", "dtype", "min", "max", "mean"]
    assert lines[3].split() == ["rewards", "(4,", "2)", "float32", "1", "40", "13.75"]
    assert len({len(line) for line in lines[2:8]}) == 1


def test_the_text_says_so_when_no_episode_ended() -> None:
    assert "no episode ended" in str(describe_rollout({"rewards": torch.ones(3, 1)}))


def test_an_empty_rollout_can_be_described_when_nothing_was_collected() -> None:
    report = describe_rollout({"rewards": torch.zeros(0, 4)})
    assert (report.num_steps, report.num_valid, report.episode_returns) == (0, 0, ())
    assert math.isnan(report.columns["rewards"].mean)
    assert "rollout of 0 steps x 4 rows" in str(report)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_float_width_is_read_when_columns_are_reduced(dtype: torch.dtype) -> None:
    column = describe_rollout({"rewards": torch.ones(2, 2, dtype=dtype) * 2}).columns["rewards"]
    assert (column.mean, column.dtype) == (2.0, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize(
    ("data", "message"),
    [({"values": torch.ones(2, 2)}, "needs the column 'rewards'"),
     ({"rewards": torch.ones(4)}, r"must be \[T, N\]")],
)  # fmt: skip
def test_a_rollout_error_is_raised_when_it_is_no_rollout(data: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        describe_rollout(data)


def test_returns_are_those_of_the_environment_when_a_rollout_was_collected() -> None:
    with PPOTrainer(None, CountdownEnv, num_envs=3, n_steps=12) as trainer:
        report = describe_rollout(trainer.collect_rollouts())
    # episodes of 5 steps return 1 + 2 + 3 + 4 + 5; two of them fit into 12 steps
    assert report.episode_returns == (15.0,) * 6
    assert report.num_terminated == 6


def test_a_nested_rollout_can_be_printed_when_it_has_pixels() -> None:
    with PPOTrainer(None, NestedEnv, num_envs=2, n_steps=8, hidden_size=8) as trainer:
        report = describe_rollout(trainer.collect_rollouts())
    assert report.columns["observations/camera"].dtype == "uint8"
    assert 0 <= report.columns["observations/camera"].minimum <= 255
    assert "observations/state/1/gear" in str(report)
    assert np.isfinite(report.columns["values"].mean)
