import dataclasses
import subprocess
import sys

import pytest

from metta.envs.grid import TASKS, GridVecEnv, GridWorldConfig
from metta.envs.grid.layout import WorldArrays, as_signed, table_of_rewards, table_of_settings
from metta.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widht": 8}, r"unknown setting 'widht'; did you mean 'width'\?"),
        ({"width": 4}, "width: found 4; allowed is a whole number of at least 5 and at most 64"),
        ({"height": 65}, "height: found 65"),
        ({"num_agents": 0}, "num_agents: found 0"),
        ({"num_agents": 65}, "num_agents: found 65"),
        ({"view_radius": 6}, "view_radius: found 6"),
        ({"capacity": 8}, "capacity: found 8"),
        ({"horizon": 0}, "horizon: found 0"),
        ({"wall_density": 0.7}, "wall_density: found 0.7"),
        ({"step_cost": float("nan")}, "step_cost: found nan"),
        ({"width": 12, "num_rooms": 4}, r"num_rooms: .* width of at least 13, .*try num_rooms=3"),
        ({"width": 30, "num_rooms": 4, "num_keys": 2}, r"num_keys: .*3 doors.*try num_keys=3"),
        (
            {"width": 5, "height": 5},
            r"num_resources: .*put 18 things into a room with 9 free cells",
        ),
        (
            {"width": 5, "height": 5, "num_agents": 9, "num_resources": 1, "num_depots": 1},
            r"num_agents: .*need 11 free cells .* has 9",
        ),
        ({"goal": 5, "num_depots": 0}, r"goal: goal=5 can never be reached .*try goal=0"),
        ({"goal": 17, "respawn": False}, r"goal: goal=17 can never .*try goal=16"),
    ],
)
def test_a_setting_is_refused_by_name_when_it_is_impossible(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GridWorldConfig(**settings)


def test_a_configuration_stays_as_it_is_when_somebody_writes_to_it() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GridWorldConfig().width = 9  # type: ignore[misc]


@pytest.mark.parametrize("name", TASKS)
def test_a_named_task_can_be_played_when_it_is_chosen(name: str) -> None:
    envs = GridVecEnv([TASKS[name]], 2)
    obs = envs.obs_spec.zeros(envs.num_rows)
    assert envs.reset(range(envs.num_rows), obs).starts.all()


def test_the_named_tasks_are_those_that_are_promised_when_they_are_listed() -> None:
    assert {"gather", "maze", "rooms", "crowd"} <= set(TASKS)
    assert TASKS["rooms"].num_doors > 0
    assert TASKS["maze"].wall_density > 0
    assert TASKS["crowd"].num_agents > 16


def test_torch_stays_unloaded_when_a_world_is_configured() -> None:
    code = "import sys; from metta.envs.grid.config import TASKS; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_keys_are_as_many_as_doors_when_their_number_is_zero() -> None:
    config = GridWorldConfig(width=30, num_rooms=4)
    assert (config.num_doors, config.keys_placed) == (3, 3)
    assert GridWorldConfig(width=30, num_rooms=4, num_keys=5).keys_placed == 5


def test_tables_hold_every_setting_in_order_when_they_are_made() -> None:
    config = GridWorldConfig(
        width=20, height=11, horizon=99, wall_density=0.25, num_resources=4, num_depots=1,
        num_rooms=2, num_keys=3, capacity=5, share_rewards=True, respawn=False, goal=2,
        gather_reward=0.5, deliver_reward=2.0, door_reward=-1.0, step_cost=0.25,
    )  # fmt: skip
    table = table_of_settings([config]).tolist()
    assert table == [[20, 11, 99, 1 << 30, 4, 1, 2, 3, 5, 1, 0, 2]]
    assert table_of_rewards([config]).tolist() == [[0.5, 2.0, -1.0, 0.25]]


@pytest.mark.parametrize("name", ["num_agents", "view_radius"])
def test_tasks_are_refused_when_one_policy_could_not_play_them(name: str) -> None:
    other = dataclasses.replace(GridWorldConfig(), **{name: 2})
    with pytest.raises(ConfigError, match=f"{name}=2 in task 1, but {name}="):
        WorldArrays.allocate([GridWorldConfig(), other], 3)


def test_no_world_is_made_when_there_are_no_tasks_or_no_worlds() -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        GridVecEnv([], 3)
    with pytest.raises(ConfigError, match="at least one world"):
        GridVecEnv([GridWorldConfig()], 0)
    with pytest.raises(ConfigError, match="num_groups=2"):
        GridVecEnv([GridWorldConfig()], 3, 2)


def test_any_whole_number_is_a_seed_when_only_64_bits_count() -> None:
    numbers = [0, -1, 1 << 63, (1 << 64) - 1, (1 << 64) + 5]
    assert [as_signed(number) for number in numbers] == [0, -1, -(1 << 63), -1, 5]
