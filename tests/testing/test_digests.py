"""Finding out whether two runs are the same, and where they are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metta.rl.ppo_trainer import PPOTrainer
from metta.testing.digests import DigestHook, compare_digests, first_difference, read_digests

SETTINGS: dict[str, Any] = {"num_envs": 2, "horizon": 8, "hidden_size": 8}


def digests_of(path: Path, seed: int = 1) -> dict[int, list[dict[str, str]]]:
    with PPOTrainer(None, "CartPole-v1", seed=seed, **SETTINGS) as trainer:
        trainer.train(48, hooks=[DigestHook(path)])
    return read_digests(path)


def test_runs_are_equal_when_their_seeds_are_and_differ_when_not(tmp_path: Path) -> None:
    first, second = digests_of(tmp_path / "a"), digests_of(tmp_path / "b")
    other = digests_of(tmp_path / "c", seed=2)
    assert sorted(first) == [1, 2, 3]
    assert compare_digests(first, second) is None
    difference = compare_digests(first, other)
    assert difference is not None
    assert difference[0] == 1
    assert "policy" in difference[1]


def test_a_half_written_line_is_left_out_when_digests_are_read(tmp_path: Path) -> None:
    expected = digests_of(tmp_path / "a")
    with (tmp_path / "a").open("a") as file:
        file.write('{"epoch": 4, "dig')
    assert read_digests(tmp_path / "a") == expected


def test_every_time_counts_when_an_epoch_was_reached_twice() -> None:
    expected = {1: [{"policy": "a"}], 2: [{"policy": "b"}]}
    assert compare_digests(expected, {2: [{"policy": "b"}, {"policy": "b"}]}) is None
    assert compare_digests(expected, {2: [{"policy": "b"}, {"policy": "x"}]}) == (2, ["policy"])
    assert compare_digests(expected, {1: [{}]}) == (1, ["policy"])
    paths = {1: [{"policy": "a", "policy_tracker": "here"}]}
    assert compare_digests(paths, {1: [{"policy": "a", "policy_tracker": "there"}]}) is None


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({"a": [1, (2.0, "x")], "t": torch.tensor([1.0, 2.0])}, None),
        ({"a": [1, (2.5, "x")], "t": torch.tensor([1.0, 2.0])}, "/a/1/0 is '2.5' instead of '2.0'"),
        (
            {"a": [1, (2.0, "x")], "t": torch.tensor([1.0, 3.0])},
            "/t differs in 1 of 2 elements, first in [1]",
        ),
        ({"a": [1, (2.0, "x")]}, "/t (only in one of them)"),
        ({"a": [1], "t": torch.tensor([1.0, 2.0])}, "/a is '[1]' instead of \"[1, (2.0, 'x')]\""),
    ],
)
def test_the_place_is_named_when_two_states_differ(found: Any, place: str | None) -> None:
    expected = {"a": [1, (2.0, "x")], "t": torch.tensor([1.0, 2.0])}
    assert first_difference(expected, found) == place


def test_the_last_bit_counts_when_arrays_are_compared() -> None:
    number = np.float32(1.0)
    place = first_difference({"x": np.array([number])}, {"x": np.array([np.nextafter(number, 2)])})
    assert place is not None
    assert place.startswith("/x differs in 1 of 1")
