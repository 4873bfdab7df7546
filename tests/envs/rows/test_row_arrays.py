import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from metta.envs.rows.gym_adapter import FiniteCheck, RowArrays
from metta.errors import EnvError
from metta.spaces import obs_spec_of

SPEC = obs_spec_of(
    spaces.Dict({"pixels": spaces.Box(0, 255, (2,), np.uint8), "speed": spaces.Box(-1, 1, (3,))})
)


def test_parts_share_memory_when_groups_write() -> None:
    whole = RowArrays.allocate(SPEC, 4, mask_size=2)
    part = whole.part(slice(2, 4))
    part.rewards[:] = 5.0
    part.terminated[0] = True
    part.final_obs["speed"][1] = 7.0
    assert part.action_mask is not None
    part.action_mask[1] = True
    assert whole.rewards.tolist() == [0, 0, 5, 5]
    assert whole.terminated.tolist() == [False, False, True, False]
    assert whole.final_obs["speed"][3].tolist() == [7, 7, 7]
    assert whole.action_mask is not None
    assert whole.action_mask.sum() == 2


def test_final_observations_are_copies_when_a_result_is_made() -> None:
    arrays = RowArrays.allocate(SPEC, 3, mask_size=0)
    arrays.truncated[:] = (True, True, False)
    arrays.terminated[0] = True
    arrays.final_obs["speed"][:] = 1.0
    result = arrays.result(any_cut=True, infos=[])
    arrays.final_obs["speed"][:] = 2.0
    assert result.final is not None
    assert result.final.rows.tolist() == [1]
    assert result.final.obs["speed"].tolist() == [[1.0, 1.0, 1.0]]
    assert result.action_mask is None


@given(st_numpy.arrays(np.float32, (3,), elements=st.floats(width=32)))
def test_rewards_pass_exactly_when_all_are_finite(rewards: np.ndarray) -> None:
    check = FiniteCheck(SPEC)
    if np.isfinite(rewards).all():
        check.rewards(rewards, first_row=0, step=1)
    else:
        bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
        with pytest.raises(EnvError, match=f"reward of row {bad + 4} is .* at step 9"):
            check.rewards(rewards, first_row=4, step=9)


def test_the_entry_is_named_when_a_large_observation_has_one_bad_number() -> None:
    obs_spec = obs_spec_of(spaces.Box(-1, 1, (100, 100)))
    obs = obs_spec.zeros(3)
    FiniteCheck(obs_spec).observations(obs, first_row=0, step=1)
    obs["obs"][2, 50, 50] = -np.inf
    with pytest.raises(EnvError, match="observation 'obs' of row 2 is -inf at step 1"):
        FiniteCheck(obs_spec).observations(obs, first_row=0, step=1)


def test_integers_are_not_looked_at_when_numbers_are_checked() -> None:
    FiniteCheck(SPEC).observations({"speed": np.zeros((1, 3), np.float32)}, first_row=0, step=1)
