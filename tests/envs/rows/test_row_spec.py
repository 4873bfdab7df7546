from typing import Any

import pytest
from gymnasium import spaces

from metta.envs.rows.row_spec import build_envs, episode_seed, row_spec_of
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv, CountdownEnv, MaskedCorridorEnv
from metta.errors import EnvError
from metta.seeding import derive_seed


def count_resets(env: Any) -> list[int]:
    seeds: list[int] = []
    reset = env.reset

    def counting(**kwargs: Any) -> Any:
        seeds.append(kwargs["seed"])
        return reset(**kwargs)

    env.reset = counting
    return seeds


@pytest.mark.parametrize(
    ("env", "mask_size", "num_resets"),
    [
        (CorridorEnv(), 0, 1),
        (MaskedCorridorEnv(), 3, 1),
        (MaskedCorridorEnv(mask_in="observation"), 3, 0),
        (ContinuousTargetEnv(), 0, 0),
    ],
)
def test_an_environment_is_reset_only_when_nothing_else_can_tell_about_masks(
    env: Any, mask_size: int, num_resets: int
) -> None:
    resets = count_resets(env)
    spec = row_spec_of(env)
    assert spec.mask_size == mask_size
    assert resets == [0] * num_resets
    assert spec.probed == bool(num_resets)


def test_rows_agree_when_only_the_bounds_of_observations_differ() -> None:
    row_spec_of(CountdownEnv(3)).check(CountdownEnv(7), row=1)


def test_rows_disagree_when_the_shapes_of_observations_differ() -> None:
    with pytest.raises(EnvError, match="row 1 has observations"):
        row_spec_of(CorridorEnv(3)).check(CorridorEnv(4), row=1)


def test_rows_disagree_when_the_bounds_of_actions_differ() -> None:
    other = ContinuousTargetEnv()
    other.action_space = spaces.Box(-2, 2, (2,))
    with pytest.raises(EnvError, match="row 1 has"):
        row_spec_of(ContinuousTargetEnv()).check(other, row=1)


def test_environments_keep_their_rows_when_only_some_rows_are_made() -> None:
    envs = build_envs({5: CountdownEnv, 2: CorridorEnv})
    assert {row: type(env) for row, env in envs.items()} == {5: CountdownEnv, 2: CorridorEnv}


def test_the_first_episode_has_the_seed_of_its_row_when_seeds_are_derived() -> None:
    assert episode_seed(17, 0) == 17
    # a known answer: these numbers decide every run
    assert episode_seed(17, 1) == derive_seed(17, "episode", index=1) >> 32 == 1_380_143_950
    seeds = {episode_seed(row, episode) for row in range(40) for episode in range(40)}
    assert len(seeds) == 1600
    assert max(seeds) < 2**31
