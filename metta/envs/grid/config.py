"""Every setting of a grid world: its unit, its range and its only default; and worlds with names.

Like all configurations it is frozen, checked when it is built, and loads without torch.
"""

from typing import Annotated

from annotated_types import Ge, Le
from pydantic import model_validator

from metta.train.parsing.fields import config_class
from metta.train.parsing.problems import BrokenRule, raise_broken

__all__ = ["TASKS", "GridWorldConfig"]

_OBSTACLE_SHARE = 4
"""Resources and depots may take one in this many free cells, so that there is always a way around."""

Side = Annotated[int, Ge(5), Le(64)]
Things = Annotated[int, Ge(0), Le(1000)]
Reward = Annotated[float, Ge(-1000), Le(1000)]


@config_class
class GridWorldConfig:
    """A world in which agents gather resources and carry them to depots, through doors that need keys.

    small = GridWorldConfig(width=10, height=10, num_agents=2, num_resources=4, goal=8)
    """

    width: Side = 16
    """Columns, with the walls around."""
    height: Side = 16
    """Rows, with the walls around."""
    num_agents: Annotated[int, Ge(1), Le(64)] = 4
    """Agents; all begin in the first room."""
    view_radius: Annotated[int, Ge(1), Le(5)] = 3
    """Cells that an agent sees to each side."""
    horizon: Annotated[int, Ge(1), Le(1_000_000)] = 256
    """Steps after which an episode is cut short."""
    wall_density: Annotated[float, Ge(0), Le(0.6)] = 0.0
    """Share of inner cells that are walls, at most: none is built that would cut something off."""
    num_resources: Things = 16
    """Resources to gather."""
    num_depots: Annotated[int, Ge(0), Le(64)] = 2
    """Places to deliver at."""
    num_rooms: Annotated[int, Ge(1), Le(21)] = 1
    """Rooms in a row, with a wall and one locked door between neighbours."""
    num_keys: Things = 0
    """Keys; each opens one door. 0: as many as there are doors."""
    capacity: Annotated[int, Ge(1), Le(7)] = 3
    """Resources that an agent can carry."""
    gather_reward: Reward = 0.1
    """For taking a resource."""
    deliver_reward: Reward = 1.0
    """For each resource delivered."""
    door_reward: Reward = 0.5
    """For opening a door."""
    step_cost: Reward = 0.0
    """Taken from every agent in every step."""
    share_rewards: bool = False
    """Whether every agent gets the team's mean reward."""
    respawn: bool = True
    """Whether a gathered resource appears again on a random free cell, at the end of the step."""
    goal: Annotated[int, Ge(0), Le(1_000_000)] = 0
    """Resources delivered by the team that end the episode; 0: it is played to the horizon."""

    @model_validator(mode="after")
    def _fits(self) -> "GridWorldConfig":
        raise_broken(_room_rules(self) or [*_space_rules(self), *_goal_rules(self)])
        return self

    @property
    def num_doors(self) -> int:
        """Doors, all of them locked at first."""
        return self.num_rooms - 1

    @property
    def keys_placed(self) -> int:
        """Keys that are placed in the world."""
        return self.num_keys or self.num_doors

    @property
    def observation_size(self) -> int:
        """Numbers that an agent observes: the cells in view, then cargo, keys, compass and clock."""
        return (2 * self.view_radius + 1) ** 2 + 4

    @property
    def wall_threshold(self) -> int:
        """`wall_density` as a whole number of 2**-32."""
        return int(self.wall_density * (1 << 32))


def _room_rules(config: GridWorldConfig) -> list[BrokenRule]:
    rooms, doors = config.num_rooms, config.num_doors
    found = []
    if config.width < 3 * rooms + 1:
        text = (
            f"num_rooms={rooms} rooms of two columns each need a width of at least {3 * rooms + 1}, found "
            f"width={config.width}; make it wider or try num_rooms={(config.width - 1) // 3}"
        )
        found.append(BrokenRule(("num_rooms", "width"), text))
    if 0 < config.num_keys < doors:
        text = (
            f"num_keys={config.num_keys} do not open the {doors} doors of num_rooms={rooms}; try "
            f"num_keys={doors}, or 0 for as many as there are doors"
        )
        found.append(BrokenRule(("num_keys", "num_rooms"), text))
    return found


def _space_rules(config: GridWorldConfig) -> list[BrokenRule]:
    """Whether everything fits into the smallest room, whatever the walls are."""
    rooms = config.num_rooms
    cells = (config.width - 1 - rooms) // rooms * (config.height - 2)
    free = cells - (cells * config.wall_threshold >> 32)
    obstacles = -(-config.num_resources // rooms) - (-config.num_depots // rooms)
    found = []
    if obstacles * _OBSTACLE_SHARE > free:
        text = (
            f"num_resources={config.num_resources} and num_depots={config.num_depots} put {obstacles} "
            f"things into a room with {free} free cells, of which they may take one in "
            f"{_OBSTACLE_SHARE}; ask for fewer, or for a larger world with fewer walls"
        )
        found.append(BrokenRule(("num_resources", "num_depots", "wall_density"), text))
    wanted = config.num_agents + config.keys_placed + obstacles
    if wanted > free:
        text = (
            f"num_agents={config.num_agents}, {config.keys_placed} keys and {obstacles} other things need "
            f"{wanted} free cells in the first room, which has {free}; ask for fewer, or for a larger "
            "world with fewer walls"
        )
        found.append(BrokenRule(("num_agents", "num_keys"), text))
    return found


def _goal_rules(config: GridWorldConfig) -> list[BrokenRule]:
    most = 0 if config.num_depots == 0 or config.num_resources == 0 else config.goal
    if most and not config.respawn:
        most = min(most, config.num_resources)
    if config.goal <= most:
        return []
    text = (
        f"goal={config.goal} can never be reached with num_resources={config.num_resources}, "
        f"num_depots={config.num_depots} and respawn={config.respawn}; try goal={most}"
    )
    return [BrokenRule(("goal", "num_resources"), text)]


TASKS: dict[str, GridWorldConfig] = {
    "gather": GridWorldConfig(width=12, height=12, num_resources=12, horizon=128),
    "maze": GridWorldConfig(width=21, height=21, wall_density=0.45, num_resources=16, num_depots=3),
    "rooms": GridWorldConfig(width=25, height=11, num_rooms=3, num_resources=12, num_depots=1),
    "crowd": GridWorldConfig(num_agents=32, num_resources=24, num_depots=4, share_rewards=True),
}
"""Worlds with names. All but "crowd" have four agents, so that one policy can play them in turn."""
