"""What everybody draws from is left as it was."""

import contextlib
import random

import numpy as np
import pytest
import torch

from metta.envs.restore.global_generators import global_generators_kept


def draws() -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002 (meant)


def seed_all() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (meant)
    torch.manual_seed(1)


@pytest.mark.parametrize("fails", [False, True])
def test_the_same_numbers_follow_when_others_drew_in_between(fails: bool) -> None:
    seed_all()
    expected = draws()
    seed_all()
    outer = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with outer, global_generators_kept():
        draws()
        torch.manual_seed(9)
        if fails:
            raise ZeroDivisionError
    assert draws() == expected
