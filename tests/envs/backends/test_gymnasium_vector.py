from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from metta.envs import GymnasiumVecEnv, RestorableVecEnv, StepResult
from metta.envs.toy import CountdownEnv, NestedEnv
from metta.errors import ConfigError, EnvError, StateError
from tests.envs.faulty_envs import FaultyEnv, MaskedEnv, ReplyEnv

MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


class BatchCountdown(VectorEnv[Any, Any, Any]):
    """Two rows that are cut every two steps, written without sub-environments."""

    def __init__(self, mode: Any = AutoresetMode.SAME_STEP, **reply: Any) -> None:
        self.metadata = {"autoreset_mode": mode} if mode is not None else {}
        self.num_envs = 2
        self.single_observation_space = spaces.Dict(
            {"count": spaces.Box(0.0, 9.0, (1,), np.float32), "kind": spaces.Discrete(3)}
        )
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.reply = reply
        self.seed: Any = None
        self.steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        del options
        self.seed, self.steps = seed, 0
        return self._observe(0), {}

    def step(self, actions: Any) -> Any:
        del actions
        self.steps += 1
        cut = self.steps % 2 == 0
        infos = {"final_obs": self._observe(2), "score": np.array([5.0, 6.0])} if cut else {}
        result = {
            "observations": self._observe(0 if cut else 1),
            "rewards": np.ones(2),
            "terminations": np.zeros(2, bool),
            "truncations": np.full(2, cut),
            "infos": infos,
        }
        return tuple((result | self.reply).values())

    def _observe(self, count: int) -> dict[str, np.ndarray]:
        return {"count": np.full((2, 1), count, np.float32), "kind": np.array([count, count])}


def run(vec_env: GymnasiumVecEnv, num_steps: int) -> tuple[StepResult, dict[str, np.ndarray]]:
    obs = vec_env.obs_spec.zeros(vec_env.num_rows)
    result = vec_env.reset(range(vec_env.num_rows), obs)
    for _ in range(num_steps):
        vec_env.send(0, np.zeros(vec_env.num_rows, np.int64))
        result = vec_env.recv(0, obs)
    return result, obs


def test_phantom_steps_are_marked_when_cartpoles_own_vector_env_resets_late() -> None:
    env = gymnasium.make_vec(
        "CartPole-v1", num_envs=6, vectorization_mode="vector_entry_point", max_episode_steps=15
    )
    vec_env = GymnasiumVecEnv(env)
    obs = vec_env.obs_spec.zeros(6)
    vec_env.reset(range(6), obs)
    ended, generator, num_cut = np.zeros(6, bool), np.random.default_rng(0), 0
    for _ in range(100):
        vec_env.send(0, generator.integers(0, 2, 6))
        result = vec_env.recv(0, obs)
        np.testing.assert_array_equal(result.valid, ~ended)
        np.testing.assert_array_equal(result.starts, ended)
        assert (result.rewards == ~ended).all()
        assert (np.abs(obs["obs"][ended]) <= 0.05).all()
        if result.final is not None:
            num_cut += len(result.final.rows)
            np.testing.assert_array_equal(result.final.obs["obs"], obs["obs"][result.final.rows])
        ended = result.terminated | result.truncated
    assert num_cut > 0
    vec_env.close()


def test_the_first_seed_is_used_when_a_vector_env_takes_only_one() -> None:
    env = BatchCountdown()
    GymnasiumVecEnv(env).reset([7, 8], GymnasiumVecEnv(env).obs_spec.zeros(2))
    assert env.seed == 7


def test_final_observations_are_found_when_they_come_as_a_batch() -> None:
    result, obs = run(GymnasiumVecEnv(BatchCountdown()), 2)
    assert result.final is not None
    assert result.final.rows.tolist() == [0, 1]
    assert result.final.obs["count"].tolist() == [[2.0], [2.0]]
    assert result.final.obs["kind"].tolist() == [2, 2]
    assert obs["count"].tolist() == [[0.0], [0.0]]
    assert result.starts.all()


@pytest.mark.parametrize("final", [{}, {"final_obs": np.array([None, None])}])
def test_the_step_fails_when_a_final_observation_is_missing(final: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="final_obs"):
        run(GymnasiumVecEnv(BatchCountdown(infos=final)), 2)


@pytest.mark.parametrize("mode", [None, "NextStep", 3])
def test_the_environment_is_refused_when_it_does_not_say_how_it_resets(mode: Any) -> None:
    with pytest.raises(EnvError, match=r"set it to .*AutoresetMode\.SAME_STEP"):
        GymnasiumVecEnv(BatchCountdown(mode))


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        ({"rewards": np.zeros((2, 1))}, r"rewards have shape \(2, 1\)"),
        ({"rewards": None}, "rewards"),
        ({"truncations": np.zeros(3, bool)}, "truncations"),
        ({"observations": {"count": np.zeros((2, 1), np.float32)}}, "no entry 'kind'"),
        ({"rewards": np.array([1.0, np.nan])}, "reward of row 1 is nan at step 1"),
    ],
)
def test_the_step_fails_when_a_batch_is_malformed(reply: dict[str, Any], complaint: str) -> None:
    vec_env = GymnasiumVecEnv(BatchCountdown(**reply))
    with pytest.raises(EnvError, match=rf"failed in step 1: .*{complaint}"):
        run(vec_env, 1)
    with pytest.raises(EnvError, match="closed"):
        run(vec_env, 0)


@MODES
def test_numbers_are_reported_when_episodes_end(mode: AutoresetMode) -> None:
    factories = [partial(CountdownEnv, 2), partial(CountdownEnv, 2, truncate=True)] * 2
    vec_env = GymnasiumVecEnv(SyncVectorEnv(factories, autoreset_mode=mode))
    assert run(vec_env, 1)[0].infos == []
    assert run(vec_env, 2)[0].infos == [(row, {"length": 2.0}) for row in range(4)]


def test_only_ended_rows_report_when_infos_have_no_row_marks() -> None:
    vec_env = GymnasiumVecEnv(BatchCountdown(mode=AutoresetMode.NEXT_STEP))
    assert run(vec_env, 2)[0].infos == [(0, {"score": 5.0}), (1, {"score": 6.0})]


def test_rows_without_a_number_report_nothing_when_other_rows_have_it() -> None:
    vec_env = GymnasiumVecEnv(SyncVectorEnv([partial(CountdownEnv, 2), partial(ReplyEnv, info={})]))
    assert run(vec_env, 2)[0].infos == [(0, {"length": 2.0})]


def test_phantom_steps_earn_nothing_when_the_environment_says_otherwise() -> None:
    vec_env = GymnasiumVecEnv(BatchCountdown(mode=AutoresetMode.NEXT_STEP))
    result, _ = run(vec_env, 3)
    assert not result.valid.any()
    assert result.rewards.tolist() == [0.0, 0.0]


@MODES
def test_the_error_is_chained_when_an_environment_raises(mode: AutoresetMode) -> None:
    factories = [partial(FaultyEnv, "nothing"), partial(FaultyEnv, "raise")]
    vec_env = GymnasiumVecEnv(SyncVectorEnv(factories, autoreset_mode=mode))
    with pytest.raises(EnvError, match="failed in step 3: SimulatorError") as caught:
        run(vec_env, 3)
    assert type(caught.value.__cause__).__name__ == "SimulatorError"


@MODES
def test_parts_are_masked_when_masks_come_as_tuples(mode: AutoresetMode) -> None:
    space = spaces.MultiDiscrete([2, 3])
    mask = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))
    env = SyncVectorEnv([partial(MaskedEnv, [mask], space)] * 2, autoreset_mode=mode)
    vec_env = GymnasiumVecEnv(env)
    result = vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    assert result.action_mask is not None
    assert result.action_mask.tolist() == [[True, False, False, True, True]] * 2


@pytest.mark.parametrize(
    ("mask", "complaint"),
    [(None, "no 'action_mask' of rows"), (np.zeros(3, bool), r"row 0: .*leaves no legal")],
)
def test_masks_are_refused_when_no_policy_could_obey_them(mask: Any, complaint: str) -> None:
    factory = partial(MaskedEnv, [np.ones(3, bool), mask])
    with pytest.raises(EnvError, match=complaint):
        run(GymnasiumVecEnv(SyncVectorEnv([factory] * 2)), 1)


def test_gymnasiums_worker_processes_are_one_more_backend_when_asked_for() -> None:
    results = []
    for make in (SyncVectorEnv, partial(AsyncVectorEnv, context="forkserver")):
        vec_env = GymnasiumVecEnv(make([NestedEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
        result, obs = run(vec_env, 20)
        results.append({key: array.tolist() for key, array in obs.items()})
        vec_env.close()
        assert result.rewards.shape == (2,)
    assert results[0] == results[1]


class SpeakingCountdown(BatchCountdown):
    """Gives and takes its state; the rewards show it."""

    def get_state(self) -> Any:
        return {"steps": self.steps, "total": np.array(self.total)}

    def set_state(self, state: Any) -> None:
        self.steps, self.total = state["steps"], state["total"].copy()

    def __init__(self, mode: Any = AutoresetMode.SAME_STEP) -> None:
        super().__init__(mode)
        self.total = np.zeros(2)

    def step(self, actions: Any) -> Any:
        self.total += actions
        observations, _, terminated, truncated, infos = super().step(actions)
        return observations, self.total.copy(), terminated, truncated, infos


def told(vec_env: GymnasiumVecEnv, num_steps: int) -> list[Any]:
    obs, seen = vec_env.obs_spec.zeros(2), []
    for step in range(num_steps):
        vec_env.send(0, np.array([step % 2, 1]))
        result = vec_env.recv(0, obs)
        seen.append([result.rewards.tolist(), result.valid.tolist(), result.starts.tolist()])
        seen.append({key: array.tolist() for key, array in obs.items()})
    return seen


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("cut", [0, 1, 2, 5])
def test_steps_are_equal_when_a_vector_environment_gives_its_state(mode: Any, cut: int) -> None:
    vec_env, other = (GymnasiumVecEnv(SpeakingCountdown(mode)) for _ in range(2))
    assert isinstance(vec_env, RestorableVecEnv)
    assert vec_env.prepare_restore().restore_class == "snapshot"
    vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    told(vec_env, cut)
    state = vec_env.state_dict()
    expected = told(vec_env, 7)
    assert other.load_state_dict(state) is None
    assert told(other, 7) == expected
    assert other.num_resets == 0


def test_fresh_episodes_are_promised_when_a_vector_environment_says_nothing() -> None:
    vec_env = GymnasiumVecEnv(SyncVectorEnv([CountdownEnv] * 2))
    promise = vec_env.prepare_restore()
    assert promise.restore_class == "boundary"
    assert "SyncVectorEnv has no get_state() and set_state()" in promise.reason
    vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    assert vec_env.state_dict() == {"class": "boundary"}
    assert vec_env.load_state_dict({"class": "boundary"}) is None
    with pytest.raises(EnvError, match="reset"):
        vec_env.send(0, np.zeros(2, np.int64))
    for wanted in ("snapshot", "repeat"):
        with pytest.raises(ConfigError, match="has no get_state"):
            vec_env.prepare_restore(wanted)  # type: ignore[arg-type]
    vec_env.close()


def test_states_are_refused_when_they_are_not_of_this_vector_environment() -> None:
    vec_env = GymnasiumVecEnv(SpeakingCountdown())
    vec_env.prepare_restore("snapshot")
    with pytest.raises(ConfigError, match="'repeat' were asked for"):
        vec_env.prepare_restore("repeat")
    vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    state = vec_env.state_dict()
    for change in ({"class": "repeat"}, {"ended": np.zeros(3, bool)}, {"env": {}}, {"env": None}):
        with pytest.raises(StateError):
            vec_env.load_state_dict(state | change)
    assert vec_env.prepare_restore("boundary").restore_class == "boundary"
    assert vec_env.state_dict() == {"class": "boundary"}
