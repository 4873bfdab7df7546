"""Known answers of every rule, from worlds drawn by hand, for both kernels."""

import numpy as np
import pytest

from .text_worlds import TextWorld, both_kernels, room

pytestmark = both_kernels


def rewards_of(result: object) -> list[float]:
    return [float(reward) for reward in result.rewards]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("action", "after"),
    [
        ("stay", room("...", ".0.", "...")),
        ("north", room(".0.", "...", "...")),
        ("east", room("...", "..0", "...")),
        ("south", room("...", "...", ".0.")),
        ("west", room("...", "0..", "...")),
    ],
)
def test_an_agent_goes_where_it_is_told_when_the_ground_is_free(
    native: bool, action: str, after: str
) -> None:
    world = TextWorld(room("...", ".0.", "..."), native=native)
    result = world.act(action)
    assert world.drawn() == after
    assert rewards_of(result) == [0.0]
    assert world.counts == [0, 0, 0, 0]
    assert result.valid.all()


@pytest.mark.parametrize("drawing", [room("0#."), room("01.")], ids=["wall", "agent"])
def test_a_move_is_blocked_when_a_wall_or_an_agent_stands_there(native: bool, drawing: str) -> None:
    world = TextWorld(drawing, native=native)
    world.act("east", *["stay"] * (len(world.obs["obs"]) - 1))
    assert world.drawn() == drawing
    assert world.counts == [0, 0, 0, 1]


def test_a_resource_is_taken_when_there_is_room_for_it(native: bool) -> None:
    world = TextWorld(room("0*."), native=native, gather_reward=0.25, capacity=2)
    assert rewards_of(world.act("east")) == [0.25]
    assert world.drawn() == room(".0.")
    assert world.state["cargo"].tolist() == [[1]]
    world.act("east")
    assert world.drawn() == room("..0")
    assert world.counts == [1, 0, 0, 0]


def test_a_resource_blocks_when_the_agent_is_full(native: bool) -> None:
    world = TextWorld(room("0*."), native=native, capacity=2, cargo=(2,))
    assert rewards_of(world.act("east")) == [0.0]
    assert world.drawn() == room("0*.")
    assert world.counts == [0, 0, 0, 1]
    assert world.state["cargo"].tolist() == [[2]]


def test_all_cargo_is_delivered_when_an_agent_walks_into_a_depot(native: bool) -> None:
    world = TextWorld(room("0D."), native=native, deliver_reward=0.5, cargo=(3,))
    assert rewards_of(world.act("east")) == [1.5]
    assert world.drawn() == room("0D.")
    assert world.state["cargo"].tolist() == [[0]]
    assert world.counts == [0, 3, 0, 0]
    assert rewards_of(world.act("east")) == [0.0]
    assert world.counts == [0, 3, 0, 1]


def test_a_door_blocks_when_the_agent_has_no_key(native: bool) -> None:
    world = TextWorld(room("0+."), native=native)
    assert rewards_of(world.act("east")) == [0.0]
    assert world.drawn() == room("0+.")
    assert world.counts == [0, 0, 0, 1]


def test_a_door_opens_for_good_when_the_agent_has_a_key(native: bool) -> None:
    world = TextWorld(room("0+."), native=native, door_reward=0.75, keys=(2,))
    assert rewards_of(world.act("east")) == [0.75]
    assert world.drawn() == room(".0.")
    assert world.state["keys"].tolist() == [[1]]
    assert world.counts == [0, 0, 1, 0]
    assert rewards_of(world.act("east")) == [0.0]
    assert world.drawn() == room("..0")


def test_a_key_is_taken_when_an_agent_walks_over_it(native: bool) -> None:
    world = TextWorld(room("0k."), native=native)
    assert rewards_of(world.act("east")) == [0.0]
    assert world.drawn() == room(".0.")
    assert world.state["keys"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("step", "after"), [(0, room(".01")), (1, room("01.")), (2, room(".01")), (7, room("01."))]
)
def test_the_first_turn_rotates_when_two_agents_want_one_cell(
    native: bool, step: int, after: str
) -> None:
    world = TextWorld(room("0.1"), native=native, step=step)
    world.act("east", "west")
    assert world.drawn() == after


@pytest.mark.parametrize(("step", "after"), [(0, room(".10")), (1, room("1.0"))])
def test_an_agent_follows_another_when_that_one_went_first(
    native: bool, step: int, after: str
) -> None:
    # agent 1 stands west of agent 0 and follows it; in step 1 it acts first and is blocked
    world = TextWorld(room("10."), native=native, step=step)
    world.act("east", "east")
    assert world.drawn() == after
    assert world.state["counts"][0, 1].tolist() == [0, 0, 0, step]


def test_everybody_gets_the_mean_when_rewards_are_shared(native: bool) -> None:
    settings = {"gather_reward": 0.1, "deliver_reward": 0.7, "door_reward": 0.3, "step_cost": 0.01}
    drawing = room("0D.1*", "2+..k")
    options = {"cargo": (2, 0, 0), "keys": (0, 0, 1), "native": native, **settings}
    apart = TextWorld(drawing, **options).act("east", "east", "east")
    numbers = np.float32([0.1, 0.7, 0.3, 0.01])
    gather, deliver, door, cost = numbers
    expected = [deliver * np.float32(2) - cost, gather - cost, door - cost]
    assert apart.rewards.tolist() == np.array(expected, np.float32).tolist()
    together = TextWorld(drawing, share_rewards=True, **options).act("east", "east", "east")
    mean = ((gather + deliver * np.float32(2)) + door) / np.float32(3) - cost
    assert together.rewards.tolist() == [float(mean)] * 3


def test_the_episode_terminates_when_the_team_has_delivered_the_goal(native: bool) -> None:
    settings = {"goal": 5, "num_resources": 1, "num_depots": 1, "respawn": True, "horizon": 2}
    world = TextWorld(room("0D1", "...", "..."), native=native, cargo=(3, 2), step=1, **settings)
    # the horizon is reached in the same step: the goal counts
    result = world.act("east", "west")
    assert result.terminated.tolist() == [True, True]
    assert result.truncated.tolist() == [False, False]
    assert result.starts.tolist() == [True, True]
    assert result.final is None
    zero = {"gathered": 0.0, "doors_opened": 0.0, "blocked": 0.0}
    assert result.infos == [(0, {**zero, "delivered": 3.0}), (1, {**zero, "delivered": 2.0})]
    assert world.state["steps"].tolist() == [0]
    assert world.state["episodes"].tolist() == [1]


def test_the_episode_goes_on_when_one_delivery_is_missing(native: bool) -> None:
    settings = {"goal": 6, "num_resources": 1, "num_depots": 1, "respawn": True}
    world = TextWorld(room("0D1", "...", "..."), native=native, cargo=(3, 2), **settings)
    result = world.act("east", "west")
    assert not (result.terminated | result.truncated | result.starts).any()
    assert result.infos == []


def test_the_last_observation_is_given_when_the_horizon_cuts_the_episode(native: bool) -> None:
    world = TextWorld(room("0*.", "...", "..."), native=native, horizon=8, step=7)
    result = world.act("east")
    assert (result.terminated.tolist(), result.truncated.tolist()) == ([False], [True])
    assert result.final is not None
    assert result.final.rows.tolist() == [0]
    # at (1, 2): walls above, empty ground around; cargo 1, no key, no depot, clock at its end
    assert result.final.obs["obs"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 7]]
    assert world.obs["obs"][0, -1] == 0
    assert result.starts.tolist() == [True]


def test_a_gathered_resource_appears_again_when_it_respawns(native: bool) -> None:
    world = TextWorld(room("0*.", "...", "..."), native=native, respawn=True)
    world.act("east")
    assert world.drawn().count("*") == 1
    assert world.state["missing"].tolist() == [0]
    gone = TextWorld(room("0*.", "...", "..."), native=native, respawn=False)
    gone.act("east")
    assert gone.drawn().count("*") == 0


def test_a_resource_waits_when_it_would_shut_off_a_depot(native: bool) -> None:
    world = TextWorld(room("D0*"), native=native, respawn=True)
    world.act("east")
    # the one empty cell is the only one beside the depot
    assert world.drawn() == room("D.0")
    assert world.state["missing"].tolist() == [1]
    world.act("west")
    assert world.drawn() == room("D0*")
    assert world.state["missing"].tolist() == [0]


def test_a_resource_waits_when_it_would_stand_before_a_door(native: bool) -> None:
    world = TextWorld(room("D0*#.+"), native=native, respawn=True)
    world.act("east")
    assert world.drawn() == room("D.0#.+")
    assert world.state["missing"].tolist() == [1]


def test_an_agent_sees_every_kind_of_cell_when_they_are_around_it(native: bool) -> None:
    world = TextWorld(
        room("*D+", "k01", "2.."), native=native, cargo=(0, 0, 1), keys=(9, 0, 0), step=49
    )
    world.act("stay", "stay", "stay")
    assert world.obs["obs"].tolist() == [
        # resource, depot, door; key, itself, agent; agent with cargo, empty, empty
        # cargo 0, keys capped at 7, depot in the north (0), clock 8 * 50 // 100
        [2, 3, 4, 5, 0, 6, 7, 0, 0, 0, 7, 0, 4],
        [3, 4, 1, 6, 0, 1, 0, 0, 1, 0, 0, 7, 4],
        [1, 5, 6, 1, 0, 0, 1, 1, 1, 1, 0, 1, 4],
    ]


def test_others_see_that_an_agent_is_loaded_when_it_takes_and_until_it_delivers(
    native: bool,
) -> None:
    world = TextWorld(room("D0*1"), native=native)
    west_of_agent_1 = []
    for action in ("stay", "east", "west", "west"):
        world.act(action, "stay" if action != "west" else "west")
        west_of_agent_1.append(int(world.obs["obs"][1, 3]))
    # a resource; the agent that took it; it goes back with cargo, followed; it has delivered
    assert west_of_agent_1 == [2, 7, 7, 6]
    assert world.drawn() == room("D01.")


def test_everything_outside_is_wall_when_the_view_is_wider_than_the_world(native: bool) -> None:
    world = TextWorld(room("...", ".0.", "..."), native=native, view_radius=5)
    world.act("stay")
    seen = world.obs["obs"][0, :121].reshape(11, 11)
    expected = np.ones((11, 11), int)
    expected[4:7, 4:7] = 0
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize(
    ("place", "octant"),
    [
        ((1, 4), 0), ((1, 5), 0), ((1, 6), 1), ((1, 7), 1), ((2, 7), 1), ((3, 7), 2), ((4, 7), 2),
        ((5, 7), 2), ((6, 7), 3), ((7, 7), 3), ((7, 5), 4), ((7, 4), 4), ((7, 3), 4), ((6, 1), 5),
        ((7, 1), 5), ((4, 1), 6), ((3, 1), 6), ((5, 1), 6), ((1, 1), 7), ((2, 1), 7), ((3, 3), 7),
        ((2, 3), 7), ((3, 5), 1),
    ],
)  # fmt: skip
def test_the_compass_points_to_the_octant_when_there_is_one_depot(
    native: bool, place: tuple[int, int], octant: int
) -> None:
    rows = [list(".......") for _ in range(7)]
    rows[3][3] = "0"  # row 4, column 4 of the world
    rows[place[0] - 1][place[1] - 1] = "D"
    world = TextWorld(room(*["".join(row) for row in rows]), native=native)
    world.act("stay")
    assert world.obs["obs"][0, -2] == octant


@pytest.mark.parametrize(
    ("rows", "octant"),
    [
        (("D..", ".0.", "..D"), 7),  # equally near: the first cell row by row
        (("..D", ".0.", "D.."), 1),
        (("D....", ".....", "..0D.", "....."), 2),  # the nearer one, though it comes later
        ((".D...", ".....", "....0", "....D"), 4),
        (("D..0..", "......", "......", "...D.."), 6),  # 3 and 3: by the larger leg alone
        (("...", ".0.", "..."), 0),
    ],
)
def test_the_compass_chooses_the_nearest_depot_when_there_are_several(
    native: bool, rows: tuple[str, ...], octant: int
) -> None:
    world = TextWorld(room(*rows), native=native)
    world.act("stay")
    assert world.obs["obs"][0, -2] == octant


def test_the_clock_counts_eighths_when_an_episode_goes_on(native: bool) -> None:
    world = TextWorld(room("0.."), native=native, horizon=20)
    seen = []
    for _ in range(19):
        world.act("stay")
        seen.append(int(world.obs["obs"][0, -1]))
    assert seen == [8 * step // 20 for step in range(1, 20)]
