"""Environments that keep something from their trainer are found out."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from faults.saved_envs import (
    GivesState,
    SavedCartPole,
    SavedCountdown,
    SavedMaskedCorridor,
    SavedNested,
)
from metta.envs import toy
from metta.envs.restore import restore_check
from metta.envs.restore.restore_check import check_restore
from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import BufferReuseEnv, CountdownEnv, NestedEnv
from metta.envs.vec_env import RestoreSupport
from metta.errors import ConfigError


def found(factory: Callable[[], Any], wanted: Any = "auto", **options: Any) -> RestoreSupport:
    return check_restore(factory, row_spec_of(factory()), wanted, **options)


@pytest.mark.parametrize("name", toy.__all__)
@pytest.mark.parametrize("wanted", ["repeat", "sync_reset"])
def test_actions_are_repeated_when_a_toy_is_tried(name: str, wanted: Any) -> None:
    reason = f"{name} has no get_state() and set_state(state)"
    assert found(getattr(toy, name)) == RestoreSupport("repeat", reason)
    assert found(getattr(toy, name), wanted) == RestoreSupport(wanted, "")
    with pytest.raises(ConfigError, match=r"'snapshot' were asked for.*has no get_state"):
        found(getattr(toy, name), "snapshot")


@pytest.mark.parametrize("made", [SavedCartPole, SavedMaskedCorridor, SavedNested])
@pytest.mark.parametrize("wanted", ["auto", "snapshot", "repeat", "sync_reset"])
def test_every_class_is_open_when_an_environment_gives_its_state(made: Any, wanted: Any) -> None:
    expected = "snapshot" if wanted == "auto" else wanted
    assert found(lambda: TimeLimit(made(), 20), wanted) == RestoreSupport(expected, "")


def test_masks_are_obeyed_when_illegal_actions_are_errors() -> None:
    promise = found(partial(SavedMaskedCorridor, mask_in="observation"))
    assert promise == RestoreSupport("snapshot", "")


class NoiseEnv(SavedCountdown):
    """Its rewards are whatever `draw` gives; `seed` is called by a reset."""

    def __init__(self, draw: Callable[[], float], seed: Callable[[int], Any] | None = None) -> None:
        super().__init__(length=20)
        self.draw, self.seed = draw, seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.seed is not None and seed is not None:
            self.seed(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.draw(), terminated, truncated, info


def _hidden() -> tuple[Callable[[], float], Callable[[int], None]]:
    generator = random.Random(1)
    return generator.random, generator.seed


class ClosureEnv(NoiseEnv):
    """Draws from a generator of its own, which is no attribute."""

    def __init__(self) -> None:
        super().__init__(*_hidden())


def _legacy() -> float:
    return float(np.random.random())  # noqa: NPY002 (that generator is meant)


GLOBAL = {
    "python": (random.random, None),
    "numpy": (_legacy, None),
    "torch": (lambda: float(torch.rand(())), None),
    "fresh numpy": (lambda: float(np.random.default_rng().random()), None),
    "clock": (time.perf_counter, None),
    "seeded python": (random.random, random.seed),
    "seeded numpy": (_legacy, np.random.seed),
    "seeded torch": (lambda: float(torch.rand(())), torch.manual_seed),
}


@pytest.mark.parametrize("source", GLOBAL)
def test_no_class_is_found_when_numbers_come_from_outside(source: str) -> None:
    promise = found(partial(NoiseEnv, *GLOBAL[source]))
    assert promise.restore_class == "boundary"
    assert promise.reason.count("the same seed and actions gave another reward at step") == 2


def test_the_generators_of_the_process_stay_when_environments_are_tried() -> None:
    spec = row_spec_of(CountdownEnv(length=20))
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (that generator is meant)
    torch.manual_seed(1)
    expected = random.random(), _legacy(), float(torch.rand(()))
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (see above)
    torch.manual_seed(1)
    for source in GLOBAL.values():
        check_restore(partial(NoiseEnv, *source), spec)
    assert (random.random(), _legacy(), float(torch.rand(()))) == expected


def test_actions_are_repeated_when_state_is_hidden_but_seeded() -> None:
    promise = found(ClosureEnv)
    assert promise.restore_class == "repeat"
    assert promise.reason == "the same seed and actions gave another reward at step 1"


class SurvivingEnv(SavedCountdown):
    """Shows how many steps it took since it was made: a reset does not change that."""

    def __init__(self, lock: bool = False) -> None:
        super().__init__(length=12)
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.age = 0
        self.lock = threading.Lock() if lock else None

    def get_state(self) -> Any:
        return super().get_state() | {"lock": self.lock}

    def step(self, action: int) -> Any:
        _, reward, terminated, truncated, info = super().step(action)
        self.age += 1
        return np.full(1, self.age, np.float32), reward, terminated, truncated, info


def test_only_a_snapshot_will_do_when_state_survives_a_reset() -> None:
    assert found(SurvivingEnv).restore_class == "snapshot"
    with pytest.raises(ConfigError, match=r"'repeat' were asked for.*another observation 'obs'"):
        found(SurvivingEnv, "repeat")
    with pytest.raises(ConfigError, match="'sync_reset' were asked for"):
        found(SurvivingEnv, "sync_reset")
    promise = found(partial(SurvivingEnv, lock=True))
    assert promise.restore_class == "boundary"
    assert "get_state()['lock'] is a lock, which cannot be saved; not repeat" in promise.reason


class SimulatedEnv(CountdownEnv, EzPickle):
    """Keeps its state where Python cannot look, and is made anew by a pickle."""

    def __init__(self) -> None:
        CountdownEnv.__init__(self, length=30)
        EzPickle.__init__(self)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.handle = threading.Lock()
        total = [0.0]

        def push(action: int) -> float:
            total[0] += float(action) + 0.25 * self.np_random.random()
            return total[0]

        def level(value: float | None = None) -> float:
            total[0] = total[0] if value is None else value
            return total[0]

        self.push, self.level = push, level

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level(0.0)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        _, reward, terminated, truncated, info = super().step(action)
        return np.full(1, self.push(action), np.float32), reward, terminated, truncated, info


class SpeakingEnv(SimulatedEnv):
    def get_state(self) -> Any:
        state = {"steps": self.steps, "level": self.level()}
        return state | {"rng": self.np_random.bit_generator.state}

    def set_state(self, state: Any) -> None:
        self.steps = state["steps"]
        self.level(state["level"])
        self.np_random.bit_generator.state = state["rng"]


class ForgetfulEnv(SpeakingEnv):
    def set_state(self, state: Any) -> None:
        super().set_state(state | {"level": round(state["level"], 6)})


def test_a_pickle_proves_nothing_when_an_environment_comes_back_fresh() -> None:
    promise = found(SimulatedEnv)
    assert promise == RestoreSupport(
        "repeat", "SimulatedEnv has no get_state() and set_state(state)"
    )


def test_an_environment_is_heard_when_it_speaks_for_itself_truly() -> None:
    assert found(SpeakingEnv) == RestoreSupport("snapshot", "")
    promise = found(ForgetfulEnv)
    assert promise.restore_class == "repeat"
    assert "another observation 'obs' at step" in promise.reason


class RareEndEnv(SavedCountdown):
    """Never ends by itself, and counts its episodes in a place that only `reset` looks at."""

    def __init__(self) -> None:
        super().__init__(length=10**9)
        count = [0]

        def begin() -> int:
            count[0] += 1
            return count[0]

        self.begin = begin

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.full(1, self.begin(), np.float32), {}


def test_the_next_episode_counts_when_none_ends_by_itself() -> None:
    promise = found(RareEndEnv)
    assert promise.restore_class == "boundary"
    assert "another observation 'obs' at step 0" in promise.reason


class TimedInfoEnv(SavedCountdown):
    def step(self, action: int) -> Any:
        *result, _ = super().step(action)
        return *result, {"seconds": time.perf_counter()}


def test_numbers_at_the_end_of_episodes_count_when_the_rest_is_equal() -> None:
    promise = found(TimedInfoEnv)
    assert promise.restore_class == "boundary"
    assert "another info 'seconds' at step" in promise.reason


class GreedyEnv(CountdownEnv):
    """Changes the action that it was given, and acts on what it was."""

    def __init__(self) -> None:
        super().__init__(length=30)
        self.action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.total = 0.0
        self.lock = threading.Lock()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.total = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> Any:  # type: ignore[override]
        observation, _, terminated, truncated, info = super().step(0)
        self.total += float(action[0])
        action[:] = 0.0
        return observation, self.total, terminated, truncated, info


def test_actions_are_repeated_as_sent_when_an_environment_changes_them() -> None:
    assert found(GreedyEnv).restore_class == "repeat"


def test_nothing_is_tried_when_the_factory_has_one_environment_only() -> None:
    env = CountdownEnv()
    closed: list[bool] = []
    env.close = lambda: closed.append(True)  # type: ignore[method-assign]
    promise = found(lambda: env, in_use=[env])
    assert promise.restore_class == "boundary"
    assert promise.reason.count("give an id or a factory") == 2
    assert not closed
    assert found(lambda: env).restore_class == "boundary"


class ClosingEnv(SavedCountdown):
    num_open = 0

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        ClosingEnv.num_open += 1

    def step(self, action: int) -> Any:
        if self.fails and self.steps == 3:
            raise RuntimeError("simulator lost")
        return super().step(action)

    def close(self) -> None:
        ClosingEnv.num_open -= 1
        raise RuntimeError("close failed too")


@pytest.mark.parametrize("fails", [False, True])
def test_throwaways_are_closed_when_they_were_tried(fails: bool) -> None:
    ClosingEnv.num_open = -1  # the one whose spaces are read
    promise = found(partial(ClosingEnv, fails=fails))
    assert ClosingEnv.num_open == 0
    assert promise.restore_class == ("boundary" if fails else "snapshot")
    assert ("simulator lost" in promise.reason) == fails


def test_every_kind_of_row_is_tried_when_factories_differ() -> None:
    spec = row_spec_of(CountdownEnv())
    calls: list[str] = []

    def counted(name: str, factory: Any) -> Any:
        def make() -> Any:
            calls.append(name)
            return factory()

        return make

    plain, noisy = counted("plain", SavedCountdown), counted("noisy", partial(NoiseEnv, _legacy))
    assert check_restore([plain] * 8, spec).restore_class == "snapshot"
    assert len(calls) == 5
    assert check_restore([plain, plain, noisy], spec).restore_class == "boundary"
    assert "noisy" in calls
    calls.clear()
    same = [partial(plain), partial(plain), partial(plain)]
    check_restore(same, spec)
    assert len(calls) == 5


class SlowEnv(GivesState, BufferReuseEnv):
    num_steps = 0

    def step(self, action: int) -> Any:
        SlowEnv.num_steps += 1
        time.sleep(0.002)
        return super().step(action)


def test_fewer_steps_are_compared_when_an_environment_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(BufferReuseEnv)
    SlowEnv.num_steps = 0
    monkeypatch.setattr(restore_check, "_SECONDS", 0.0)
    assert found(SlowEnv).restore_class == "snapshot"
    assert 6 <= SlowEnv.num_steps < 40


def test_no_environment_is_made_when_fresh_episodes_are_wanted() -> None:
    def never() -> Any:
        raise AssertionError

    promise = check_restore(never, row_spec_of(NestedEnv()), "boundary")
    assert promise == RestoreSupport("boundary", "as asked for")


# Box2D's wrapper warns while it loads, and crashes where that warning is an error
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_actions_are_repeated_when_the_world_is_box2ds() -> None:
    promise = found(lambda: gymnasium.make("LunarLander-v3", disable_env_checker=True))
    assert promise == RestoreSupport(
        "repeat", "LunarLander has no get_state() and set_state(state)"
    )


class Library(SavedCountdown):
    """Carries a large table around."""

    def __init__(self) -> None:
        super().__init__(length=9)
        self.table = {number: [number, number + 1] for number in range(3_000)}

    def get_state(self) -> Any:
        return super().get_state() | {"table": self.table}


def test_the_class_is_the_same_when_there_are_more_environments() -> None:
    spec = row_spec_of(Library())
    for num_envs in (1, 300):
        assert check_restore([Library] * num_envs, spec).restore_class == "snapshot"


class DeepEnv(SavedCountdown):
    """Its state is too deep for a checkpoint, from its fourth step on."""

    def get_state(self) -> Any:
        deep: Any = []
        for _ in range(30 if self.steps > 3 else 0):
            deep = [deep]
        return super().get_state() | {"deep": deep}


def test_actions_are_repeated_when_no_checkpoint_would_take_the_state() -> None:
    promise = found(partial(DeepEnv, length=30))
    assert promise.restore_class == "repeat"
    assert "nested too deep to be saved" in promise.reason


@pytest.mark.parametrize("wrapper", [NormalizeObservation, NormalizeReward])
def test_another_way_is_named_when_a_wrapper_keeps_statistics(wrapper: Any) -> None:
    assert found(lambda: wrapper(SavedCartPole())).restore_class == "snapshot"
    promise = found(lambda: wrapper(gymnasium.make("CartPole-v1", disable_env_checker=True)))
    assert promise.restore_class == "boundary"
    assert f"not repeat: {wrapper.__name__} keeps statistics from episode" in promise.reason
    assert "normalize_observations=true" in promise.reason
