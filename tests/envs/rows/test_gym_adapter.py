from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics

from faults.saved_envs import GivesState
from metta.envs import SerialVecEnv, StepResult
from metta.envs.restore.row_places import RowPlace, bring_row, row_states
from metta.envs.rows.gym_adapter import GymRows, RowArrays, as_reward
from metta.envs.rows.row_spec import episode_seed, row_spec_of
from metta.envs.toy import BufferReuseEnv, CountdownEnv, MaskedCorridorEnv
from metta.errors import EnvError, SpaceError, StateError
from tests.envs.faulty_envs import FaultyEnv, MaskedEnv, ReplyEnv, WideBoxEnv


def run(env: Any, num_steps: int, action: Any = 0) -> list[StepResult]:
    """Step one environment; each result is complete before the next step changes its arrays."""
    vec_env = SerialVecEnv([lambda: env])
    obs = vec_env.obs_spec.zeros(1)
    results = [vec_env.reset([1], obs)]
    for _ in range(num_steps):
        vec_env.send(0, np.asarray([action]))
        results.append(vec_env.recv(0, obs))
    return results


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (2, 2.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int16(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
    ],
)
def test_rewards_become_floats_when_they_come_in_a_usual_disguise(
    reward: Any, expected: float
) -> None:
    number = as_reward(reward)
    assert type(number) is float
    assert number == expected
    assert run(ReplyEnv(reward=reward), 1)[-1].rewards.tolist() == [expected]


@pytest.mark.parametrize("reward", [None, "1", [1.0], np.zeros(2), 1j, {}])
def test_rewards_are_refused_when_they_are_not_one_real_number(reward: Any) -> None:
    with pytest.raises(EnvError, match=r"row 0 .* failed at step 1: the reward is"):
        run(ReplyEnv(reward=reward), 1)


def test_numbers_are_reported_when_an_episode_ends() -> None:
    info = {
        "score": np.float32(0.5),
        "kills": 3,
        "won": True,
        "flag": np.bool_(False),
        "level": np.array(7),
        "name": "maze",
        "path": [1, 2],
        "position": np.zeros(1),
        "nested": {"a": 1.0},
    }
    numbers = {"score": 0.5, "kills": 3.0, "won": 1.0, "flag": 0.0, "level": 7.0}
    assert run(ReplyEnv(info=info), 2)[-1].infos == [(0, numbers)]


def test_nothing_is_reported_when_the_episode_goes_on() -> None:
    assert run(ReplyEnv(info={"score": 1.0}), 1)[-1].infos == []


def test_infos_are_gone_when_the_next_step_ends_nothing() -> None:
    assert run(ReplyEnv(info={"score": 1.0}), 3)[-1].infos == []


def test_gymnasiums_episode_statistics_are_left_out_when_recorded() -> None:
    assert run(RecordEpisodeStatistics(CountdownEnv(1)), 1)[-1].infos == [(0, {"length": 1.0})]


@pytest.mark.parametrize(
    ("observation", "complaint"),
    [
        (np.zeros(2, np.float32), r"shape \(2,\).* promises \(1,\)"),
        (np.float32(0), r"shape \(\)"),
        (np.array(["a"]), "dtype"),
        (np.array([None]), "dtype"),
        (None, "shape"),
    ],
)
def test_observations_are_refused_when_they_do_not_fit_their_space(
    observation: Any, complaint: str
) -> None:
    with pytest.raises(EnvError, match=rf"(?s)row 0 .* failed at step 1: .*{complaint}"):
        run(ReplyEnv(observation=observation), 1)


@pytest.mark.parametrize("observation", [[1.5], (1.5,), np.array([1.5]), np.array([1.5], "f2")])
def test_observations_are_converted_when_nothing_is_lost(observation: Any) -> None:
    vec_env = SerialVecEnv([lambda: ReplyEnv(observation=observation)])
    obs = vec_env.obs_spec.zeros(1)
    vec_env.reset([1], obs)
    vec_env.send(0, np.zeros(1, np.int64))
    vec_env.recv(0, obs)
    assert obs["obs"].tolist() == [[1.5]]


def test_float64_observations_are_stored_as_float32_when_the_space_is_wide() -> None:
    assert SerialVecEnv([WideBoxEnv]).obs_spec.leaves[0].dtype == np.float32


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.Discrete(3), [True, False, True], [1, 0, 1]),
        (spaces.Discrete(3, start=5), np.array([0, 1, 1], np.int8), [0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1]), [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), (np.ones(2), np.array([0, 0, 1])), [1, 1, 0, 0, 1]),
        (spaces.MultiDiscrete(np.array([[2], [2]])), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
        (spaces.MultiBinary(2), np.array([1, 1, 0, 1], bool), [1, 1, 0, 1]),
    ],
)
def test_masks_are_flat_rows_of_booleans_when_given_in_any_usual_form(
    space: Any, mask: Any, expected: list[int]
) -> None:
    action = space.sample()
    for result in run(MaskedEnv([mask], space), 2, action):
        assert result.action_mask is not None
        assert result.action_mask.dtype == np.bool_
        assert result.action_mask.astype(int).tolist() == [expected]


@pytest.mark.parametrize(
    ("space", "mask", "complaint"),
    [
        (spaces.Discrete(3), np.zeros(3, bool), "leaves no legal"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 1, 0, 0, 0]), "leaves no legal"),
        (spaces.Discrete(3), np.ones(2, bool), "2 entries of bool, but the action space needs 3"),
        (spaces.MultiDiscrete([2, 3]), np.ones((2, 3), bool), "6 entries"),
        (spaces.Discrete(3), np.array(["a", "b", "c"]), "booleans"),
        (spaces.Discrete(3), None, "info has no 'action_mask'"),
    ],
)
def test_masks_are_refused_when_no_policy_could_obey_them(
    space: Any, mask: Any, complaint: str
) -> None:
    good = np.ones(3 if isinstance(space, spaces.Discrete) else 5, bool)
    with pytest.raises(EnvError, match=rf"(?s)row 0 .* failed at step 1: .*{complaint}"):
        run(MaskedEnv([good, mask], space), 1, space.sample())


def test_a_mask_is_refused_when_the_first_reset_had_none() -> None:
    late = ReplyEnv(info={"action_mask": np.ones(2, bool)})
    with pytest.raises(EnvError, match="the first reset had none"):
        run(late, 2)


def test_infos_of_earlier_steps_stay_when_a_later_step_ends() -> None:
    quiet, ending = run(CountdownEnv(3), 3)[-2:]
    assert quiet.infos == []
    assert ending.infos == [(0, {"length": 3.0})]


def test_a_mask_is_refused_when_it_is_bad_in_reset_already() -> None:
    with pytest.raises(EnvError, match=r"failed at step 0: .*leaves no legal"):
        run(MaskedEnv([np.zeros(3, bool)]), 0)


class MaskedBoxEnv(CountdownEnv):
    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"x": box, "action_mask": box})
        self.action_space = box


def test_masks_are_refused_when_the_action_space_is_continuous() -> None:
    with pytest.raises(EnvError, match="cannot be masked"):
        SerialVecEnv([MaskedBoxEnv])


class DictActionEnv(CountdownEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({"a": spaces.Discrete(2)})


def test_action_spaces_are_refused_when_an_action_is_not_one_array() -> None:
    with pytest.raises(SpaceError, match="flatten it"):
        SerialVecEnv([DictActionEnv])


class OldStyleEnv(CountdownEnv):
    def step(self, action: int) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


def test_the_row_is_named_when_an_environment_returns_the_old_four_values() -> None:
    with pytest.raises(
        EnvError,
        match=r"row 0 .* failed at step 1: step\(\) of OldStyleEnv .*API of gym before 0.26",
    ):
        run(OldStyleEnv(), 1)


def test_wrappers_time_limits_truncate_when_made_by_gymnasium() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=1, disable_env_checker=True)
    result = run(env, 1)[-1]
    assert result.truncated.tolist() == [True]
    assert result.final is not None


class SeedsEnv(BufferReuseEnv):
    """Remembers the seeds it was reset with."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self.seeds: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


class Rows:
    """`GymRows` with all it needs; rows are numbered from 10."""

    def __init__(self, *envs: Any) -> None:
        self.envs, spec = envs, row_spec_of(envs[0])
        self.arrays = RowArrays.allocate(spec.obs_spec, len(envs), spec.mask_size)
        self.rows = GymRows(envs, spec, self.arrays, 10)
        self.obs = spec.obs_spec.zeros(len(envs))

    def step(self, action: int, times: int = 1) -> None:
        for _ in range(times):
            self.rows.step(np.full(len(self.envs), action), self.obs)


def test_every_episode_has_its_own_seed_when_rows_go_on() -> None:
    made = Rows(SeedsEnv(2), SeedsEnv(3))
    for env in made.envs:
        env.seeds.clear()
    made.rows.reset([5, 6], made.obs)
    made.step(0, times=7)
    assert made.envs[0].seeds == [5, *(episode_seed(5, episode) for episode in (1, 2, 3))]
    assert made.envs[1].seeds == [6, *(episode_seed(6, episode) for episode in (1, 2))]
    assert made.rows.episodes.tolist() == [3, 2]
    assert made.rows.row_seeds.tolist() == [5, 6]
    made.rows.reset([7, 8], made.obs)
    assert made.rows.episodes.tolist() == [0, 0]


def test_the_next_episode_begins_without_a_step_when_asked_for() -> None:
    made = Rows(SeedsEnv(), SeedsEnv(1))
    made.rows.reset([5, 6], made.obs)
    made.step(0)
    made.rows.begin_fresh(made.obs)
    arrays = made.arrays
    assert made.rows.episodes.tolist() == [1, 2]
    assert [env.seeds[-1] for env in made.envs] == [episode_seed(5, 1), episode_seed(6, 2)]
    assert made.obs["obs"][:, 1].tolist() == [0, 0]
    assert arrays.starts.all()
    assert not (arrays.valid | arrays.terminated | arrays.truncated).any()
    assert not arrays.rewards.any()
    assert (made.rows.any_cut, made.rows.infos) == (False, [])
    made.step(0)
    assert arrays.valid.all()
    assert arrays.starts.tolist() == [False, True]


def test_rows_stand_where_they_stood_when_states_are_loaded() -> None:
    made, other = (Rows(SavedBuffer(), OtherKindEnv()) for _ in range(2))
    made.rows.reset([5, 6], made.obs)
    made.step(0, times=6)
    states = row_states(made.rows)
    assert [(state["seed"], state["episode"]) for state in states] == [(5, 1), (6, 1)]
    brought(other, states)
    assert other.rows.episodes.tolist() == [1, 1]
    for _ in range(7):
        made.step(0)
        other.step(0)
        assert made.obs["obs"].tobytes() == other.obs["obs"].tobytes()
        assert made.arrays.truncated.tolist() == other.arrays.truncated.tolist()


class SavedBuffer(GivesState, BufferReuseEnv):
    """Gives its state."""


class OtherKindEnv(SavedBuffer):
    """Another kind of environment with the same spaces."""

    extra = 0

    def step(self, action: int) -> Any:
        self.extra += 1
        return super().step(action)


class World:
    """What a reset makes."""

    def __init__(self, seed: int | None) -> None:
        self.level = float(seed or 0)


class WorldMakingEnv(CountdownEnv):
    world: World

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.world = World(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        self.world.level += 1.0
        return observation, self.world.level, terminated, truncated, info

    def get_state(self) -> Any:
        return self.steps, self.world.level

    def set_state(self, state: Any) -> None:
        self.steps, self.world.level = state


def test_states_are_taken_when_what_a_reset_makes_is_not_there_yet() -> None:
    made, other = Rows(WorldMakingEnv()), Rows(WorldMakingEnv())
    del other.envs[0].world
    made.rows.reset([5], made.obs)
    made.step(0, times=2)
    brought(other, row_states(made.rows))
    other.step(0)
    assert other.arrays.rewards.tolist() == [8.0]


def brought(made: Rows, states: list[dict[str, Any]]) -> None:
    for row, state in enumerate(states):
        place = RowPlace(state["seed"], state["episode"], state["env"], np.empty(0))
        bring_row(made.rows, row, place, made.obs)


def test_the_row_is_named_when_its_state_does_not_fit() -> None:
    made = Rows(SavedBuffer(), OtherKindEnv())
    made.rows.reset([5, 6], made.obs)
    first, _ = row_states(made.rows)
    with pytest.raises(
        StateError, match=r"row 11 does not fit <OtherKindEnv.*it is of \['SavedBuffer'\]"
    ):
        brought(made, [first, first])


def test_observations_are_seen_again_when_actions_are_repeated() -> None:
    made = Rows(*(MaskedCorridorEnv() for _ in range(3)))
    made.rows.reset([1, 2, 3], made.obs)
    results = made.arrays.starts.copy(), made.arrays.action_mask.copy()
    for row, (episode, actions) in enumerate([(0, [2, 1, 0]), (4, [2]), (0, [])]):
        place = RowPlace(7 + row, episode, None, np.array(actions, np.int64))
        bring_row(made.rows, row, place, made.obs)
    assert made.obs["obs"].argmax(axis=1).tolist() == [2, 2, 0]
    assert made.rows.row_seeds.tolist() == [7, 8, 9]
    assert made.rows.episodes.tolist() == [0, 4, 0]
    # a reader may still hold the results of the last step
    np.testing.assert_array_equal(made.arrays.starts, results[0])
    np.testing.assert_array_equal(made.arrays.action_mask, results[1])
    made.step(1)
    assert made.obs["obs"].argmax(axis=1).tolist() == [3, 3, 1]
    assert not (made.arrays.terminated | made.arrays.truncated | made.arrays.starts).any()


@pytest.mark.parametrize(
    ("envs", "complaint"),
    [
        ((CountdownEnv(5), CountdownEnv(2)), r"row 11 .*ended after 2 of 3 repeated actions"),
        (
            (FaultyEnv("nothing"), FaultyEnv("raise", at=2)),
            r"row 11 .*failed at step 2: SimulatorError",
        ),
    ],
)
def test_the_row_is_named_when_actions_cannot_be_repeated(
    envs: tuple[Any, Any], complaint: str
) -> None:
    made = Rows(*envs)
    with pytest.raises(EnvError, match=complaint):
        bring_row(made.rows, 1, RowPlace(1, 0, None, np.zeros(3, np.int64)), made.obs)
