"""What every `RestorableVecEnv` promises: saved and restored, it continues as if nothing had happened."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import restored_envs
from restored_envs import BACKENDS, CLASSES, CUTS, NUM_ROWS, SEEDS, WORLDS, Recording, play

from faults.saved_envs import SavedCountdown
from metta.envs.vec_env import RestorableVecEnv
from metta.errors import ConfigError, EnvError, StateError
from metta.stateful import digest_of

# workers need not import it
cloudpickle.register_pickle_by_value(restored_envs)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Box2D's wrapper warns while it loads, and crashes where that warning is an error
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

all_backends = pytest.mark.parametrize("backend", BACKENDS)
all_worlds = pytest.mark.parametrize("world", WORLDS)


@pytest.fixture(scope="module")
def recordings() -> dict[tuple[str, str], Recording]:
    return {}


def recording_of(
    recordings: dict[tuple[str, str], Recording], backend: str, world: str
) -> Recording:
    """The uninterrupted run, made once for all tests."""
    if (backend, world) not in recordings:
        with closing(restored_envs.open_world(backend, world)) as vec_env:
            promise = vec_env.prepare_restore()
            assert (promise.restore_class, bool(promise.reason)) == (
                CLASSES[world],
                CLASSES[world] != "snapshot",
            )
            recordings[backend, world] = Recording(vec_env)
    return recordings[backend, world]


@all_backends
@all_worlds
def test_steps_are_equal_to_the_bit_when_a_new_environment_takes_the_state(
    backend: str, world: str, recordings: Any
) -> None:
    recording = recording_of(recordings, backend, world)
    assert recording.num_ends >= 2 * NUM_ROWS
    for cut in CUTS:
        with closing(restored_envs.open_world(backend, world)) as other:
            seen = other.load_state_dict(recording.states[cut])
            actions, told = recording.part(cut)
            assert play(other, actions) == told
            assert other.num_resets == 0
            assert (seen is None) == (CLASSES[world] == "snapshot")
            if seen is not None:
                assert digest_of(dict(seen)) == digest_of(recording.observed[cut])


@pytest.fixture(scope="module")
def told_by_a_new_process(
    recordings: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("cuts")
    for backend in BACKENDS:
        for world in WORLDS:
            recording = recording_of(recordings, backend, world)
            restored_envs.write_last_cut(folder / backend / world, recording)
    environ = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(restored_envs.__file__)
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = json.loads((folder / "told.json").read_text())
    return told


@all_backends
@all_worlds
def test_steps_are_equal_to_the_bit_when_a_new_process_takes_the_state(
    backend: str, world: str, recordings: Any, told_by_a_new_process: dict[str, list[str]]
) -> None:
    recording = recording_of(recordings, backend, world)
    assert told_by_a_new_process[f"{backend}/{world}"] == recording.part(CUTS[-1])[1]


@all_backends
@pytest.mark.parametrize("world", ["cartpole", "saved-cartpole", "masked-dict", "lunar-lander"])
def test_steps_are_equal_to_the_bit_when_an_environment_goes_back_and_forth(
    backend: str, world: str, recordings: Any
) -> None:
    recording = recording_of(recordings, backend, world)
    with closing(restored_envs.open_world(backend, world)) as other:
        other.prepare_restore()
        other.reset(SEEDS[::-1], other.obs_spec.zeros(NUM_ROWS))
        for cut, later in ((CUTS[2], CUTS[2] + 9), (CUTS[0], CUTS[1])):
            other.load_state_dict(recording.states[cut])
            actions, told = recording.actions[cut:later], recording.told[cut:later]
            assert play(other, actions) == told
        assert other.num_resets == 1
        # it stands at the second cut now: what it saves is what was saved there
        assert digest_of(other.state_dict()) == digest_of(recording.states[CUTS[1]])


@all_backends
@pytest.mark.parametrize("world", ["saved-cartpole", "nested", "masked-dict"])
def test_steps_are_equal_to_the_bit_when_actions_are_repeated_though_states_could_be_read(
    backend: str, world: str
) -> None:
    with closing(restored_envs.open_world(backend, world)) as vec_env:
        assert vec_env.prepare_restore("repeat").restore_class == "repeat"
        recording = Recording(vec_env)
    with closing(restored_envs.open_world(backend, world)) as other:
        for cut in CUTS:
            state = recording.states[cut]
            assert state["class"] == "repeat"
            seen = other.load_state_dict(state)
            assert seen is not None
            assert digest_of(dict(seen)) == digest_of(recording.observed[cut])
            actions, told = recording.part(cut)
            assert play(other, actions) == told


@all_backends
@pytest.mark.parametrize("world", ["saved-cartpole", "lunar-lander"])
def test_steps_are_equal_to_the_bit_when_another_backend_takes_the_state(
    backend: str, world: str, recordings: Any
) -> None:
    cut = CUTS[-1]
    with closing(restored_envs.open_world(backend, world)) as vec_env:
        for other in BACKENDS:
            recording = recording_of(recordings, other, world)
            vec_env.load_state_dict(recording.states[cut])
            assert play(vec_env, recording.actions[cut:][:50]) == recording.told[cut:][:50]


class GlobalNoiseEnv(SavedCountdown):
    """Draws its rewards from the generator that the whole process shares."""

    def step(self, action: int) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        reward = float(np.random.random())  # noqa: NPY002 (that generator is meant)
        return observation, reward, terminated, truncated, info


@pytest.fixture(params=BACKENDS)
def noisy(request: pytest.FixtureRequest) -> Iterator[RestorableVecEnv]:
    with closing(BACKENDS[request.param]([GlobalNoiseEnv] * NUM_ROWS)) as vec_env:
        yield vec_env


def test_fresh_episodes_are_promised_when_randomness_is_global(noisy: RestorableVecEnv) -> None:
    assert isinstance(noisy, RestorableVecEnv)
    promise = noisy.prepare_restore()
    assert promise.restore_class == "boundary"
    assert "not snapshot: the same seed and actions gave another reward" in promise.reason
    assert "not repeat: the same seed and actions gave another reward" in promise.reason
    obs = noisy.obs_spec.zeros(NUM_ROWS)
    noisy.reset(SEEDS, obs)
    assert noisy.state_dict() == {"class": "boundary"}
    assert noisy.load_state_dict({"class": "boundary"}) is None
    with pytest.raises(EnvError, match="reset"):
        noisy.send(0, np.zeros(NUM_ROWS // noisy.num_groups, np.int64))
    noisy.reset(SEEDS, obs)
    assert noisy.num_resets == 2


@pytest.mark.parametrize("wanted", ["snapshot", "repeat"])
def test_a_wanted_class_is_refused_when_it_fails_its_test(
    noisy: RestorableVecEnv, wanted: Any
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){wanted}.*another reward .*'auto'"):
        noisy.prepare_restore(wanted)


@all_backends
def test_episodes_begin_anew_when_nobody_asked_for_a_class(backend: str) -> None:
    with closing(restored_envs.open_world(backend, "cartpole")) as vec_env:
        vec_env.reset(SEEDS, vec_env.obs_spec.zeros(NUM_ROWS))
        assert vec_env.state_dict() == {"class": "boundary"}
        assert vec_env.prepare_restore("boundary").restore_class == "boundary"
        assert vec_env.state_dict() == {"class": "boundary"}


@all_backends
def test_nothing_is_to_be_saved_when_there_was_no_reset(backend: str) -> None:
    with closing(restored_envs.open_world(backend, "cartpole")) as vec_env:
        vec_env.prepare_restore()
        assert vec_env.state_dict() == {"class": "boundary"}


@all_backends
@pytest.mark.parametrize("wanted", ["snapshot", "repeat"])
def test_a_state_is_refused_when_a_step_is_under_way(backend: str, wanted: Any) -> None:
    with closing(restored_envs.open_world(backend, "saved-cartpole")) as vec_env:
        vec_env.prepare_restore(wanted)
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        vec_env.reset(SEEDS, obs)
        size = NUM_ROWS // vec_env.num_groups
        last = vec_env.num_groups - 1
        vec_env.send(last, np.zeros(size, np.int64))
        with pytest.raises(EnvError, match=r"state_dict\(\) was called out of turn: a step is"):
            vec_env.state_dict()
        vec_env.recv(last, vec_env.obs_spec.zeros(size))
        assert vec_env.state_dict()["class"] == wanted


@all_backends
def test_calls_are_refused_when_the_environment_is_closed(backend: str, recordings: Any) -> None:
    state = recording_of(recordings, backend, "cartpole").states[0]
    vec_env = restored_envs.open_world(backend, "cartpole")
    vec_env.prepare_restore("repeat")
    vec_env.close()
    with pytest.raises(EnvError, match="closed"):
        vec_env.state_dict()
    with pytest.raises(EnvError, match="closed"):
        vec_env.load_state_dict(state)


def _without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@all_backends
@pytest.mark.parametrize("wanted", ["snapshot", "repeat"])
def test_states_are_refused_when_they_do_not_fit(backend: str, wanted: Any) -> None:
    with closing(restored_envs.open_world(backend, "saved-cartpole")) as vec_env:
        vec_env.prepare_restore(wanted)
        vec_env.reset(SEEDS, vec_env.obs_spec.zeros(NUM_ROWS))
        play(vec_env, [np.zeros(NUM_ROWS, np.int64)] * 3)
        state = vec_env.state_dict()
        bad: list[dict[str, Any]] = [_without(state, key) for key in state]
        bad += [{**state, "class": "sync_reset"}, {**state, "class": 3}]
        if wanted == "snapshot":
            rows = state["rows"]
            bad += [{**state, "rows": rows[:3]}, {**state, "rows": [*rows[:3], {}]}]
            bad += [{**state, "rows": [*rows[:3], {**rows[3], "env": {"kind": "dict"}}]}]
        else:
            bad += [{**state, "actions": state["actions"].astype(np.float32)}]
            bad += [{**state, "actions": state["actions"][1:]}]
            bad += [{**state, "lengths": state["lengths"] * np.array([1, 1, 1, -1])}]
            bad += [{**state, key: state[key][:3]} for key in ("seeds", "episodes", "lengths")]
        for one in bad:
            with pytest.raises(StateError):
                vec_env.load_state_dict(one)
            with pytest.raises(EnvError, match="reset"):
                vec_env.send(0, np.zeros(NUM_ROWS // vec_env.num_groups, np.int64))
        vec_env.load_state_dict(state)
        play(vec_env, [np.zeros(NUM_ROWS, np.int64)] * 3)
