from typing import get_args

import pytest

from metta.envs.vec_env import RestoreClass, RestoreSupport, group_slices
from metta.errors import ConfigError


def test_groups_are_contiguous_and_equal_when_rows_divide() -> None:
    assert group_slices(6, 2) == [slice(0, 3), slice(3, 6)]
    assert group_slices(3, 1) == [slice(0, 3)]


def test_groups_are_refused_with_a_proposal_when_rows_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="7"):
        group_slices(7, 2)


@pytest.mark.parametrize("name", get_args(RestoreClass))
def test_a_promise_says_what_a_resumed_run_is_when_described(name: RestoreClass) -> None:
    said = RestoreSupport(name, "").describe()
    assert said.startswith(f"environments are of class {name}: a resumed run ")
    assert RestoreSupport(name, "too big").describe() == f"{said} (because too big)"
