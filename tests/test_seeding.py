import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metta.seeding import derive_seed, numpy_generator

KEYS = st.tuples(
    st.integers(0, 2**63), st.text(max_size=8), st.integers(0, 99), st.integers(0, 10**6),
    st.integers(0, 10**4),
)  # fmt: skip


def seed_of(key: tuple[int, str, int, int, int]) -> int:
    seed, purpose, rank, epoch, index = key
    return derive_seed(seed, purpose, rank=rank, epoch=epoch, index=index)


@given(KEYS, KEYS)
def test_seeds_differ_exactly_when_keys_differ(first: tuple, second: tuple) -> None:
    assert (seed_of(first) == seed_of(second)) == (first == second)


@given(KEYS)
def test_a_seed_fits_every_generator_when_it_is_derived(key: tuple) -> None:
    assert 0 <= seed_of(key) < 2**63


def test_the_seed_is_the_known_one_when_the_machine_changes() -> None:
    # sha256('[1, "noise", 0, 0, 0]'), first 8 bytes little-endian, shifted right by one
    assert derive_seed(1, "noise") == 8718825911848742043


def test_the_seed_is_the_same_when_another_process_derives_it() -> None:
    code = "from metta.seeding import derive_seed; print(derive_seed(7, 'env', rank=1, epoch=2))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert int(found) == derive_seed(7, "env", rank=1, epoch=2)


@pytest.mark.parametrize("change", [{"rank": 1}, {"epoch": 1}, {"index": 1}])
def test_streams_are_independent_when_one_part_of_the_key_differs(change: dict[str, int]) -> None:
    first, second = numpy_generator(1, "noise"), numpy_generator(1, "noise", **change)
    # 10,000 uniform pairs: the correlation of independent streams has deviation 0.01
    correlation = np.corrcoef(first.random(10_000), second.random(10_000))[0, 1]
    assert abs(correlation) < 0.05


def test_numbers_are_equal_when_a_generator_is_made_again() -> None:
    first, second = (
        numpy_generator(3, "minibatch", epoch=9),
        numpy_generator(3, "minibatch", epoch=9),
    )
    np.testing.assert_array_equal(first.permutation(100), second.permutation(100))


def test_global_generators_are_left_alone_when_seeds_are_derived() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (the legacy generator is what must not move)
    numpy_generator(1, "noise").random(10)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002 (as above)
