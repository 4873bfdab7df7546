"""That generators come back is shown in `test_own_state`; here is what is refused."""

import random
from typing import Any

import numpy as np
import pytest

from metta.envs.restore.generator_state import (
    generator_state,
    is_global_generator,
    load_generator_state,
)
from metta.errors import StateError


@pytest.mark.parametrize(
    ("generator", "path", "position"),
    [
        (np.random.Generator(np.random.MT19937(1)), ("state", "pos"), 625),
        (np.random.Generator(np.random.MT19937(1)), ("state", "pos"), -1),
        (np.random.RandomState(1), ("state", "pos"), 10**6),
        (np.random.Generator(np.random.Philox(1)), ("buffer_pos",), -1),
        (np.random.Generator(np.random.Philox(1)), ("buffer_pos",), 5),
    ],
)
def test_a_state_is_refused_when_it_points_outside_of_its_words(
    generator: Any, path: tuple[str, ...], position: int
) -> None:
    state = generator_state(generator)
    assert state is not None
    place = state["bits"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = position
    with pytest.raises(StateError, match=rf"{path[-1]} is {position}, not in 0\.\."):
        load_generator_state(state)


@pytest.mark.parametrize(
    "state", [{}, {"bits": {"bit_generator": "Dice"}, "seeds": None}, {"version": 3, "words": [1]}]
)
def test_a_state_is_refused_when_it_is_not_one(state: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="not a state of a random generator"):
        load_generator_state(state)


class Dice(random.Random):
    """A generator of somebody's own, with who knows what else."""


def test_nothing_is_read_when_a_generator_is_of_another_making() -> None:
    assert generator_state(Dice(1)) is None


def test_only_the_shared_ones_are_global_when_generators_are_told_apart() -> None:
    assert is_global_generator(np.random.random.__self__)
    assert is_global_generator(random.random.__self__)
    assert not is_global_generator(np.random.RandomState(1))
    assert not is_global_generator(random.Random(1))
