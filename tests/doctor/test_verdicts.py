"""What the doctor says of set-ups that have no fault: notes, and reasons not to accuse."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import tests.doctor.planted_faults as planted
import tests.doctor.teams as teams
from metta import check_env
from metta.curriculum import Task
from metta.envs import SerialVecEnv, make_vec_env

QUICK: dict[str, Any] = {"play_steps": 400, "probes": False}


def finding_of(env: Any, name: str, **more: Any) -> Any:
    report = check_env(env, **{**QUICK, **more})
    return next(finding for finding in report.findings if finding.name == name)


@pytest.mark.parametrize(
    ("env", "name", "severity", "text"),
    [
        (planted.NoisyReward, "seeding", "warning", "at step 1"),
        (planted.TinyReward, "reward scale", "note", "1e-06"),
        ("MountainCar-v0", "episodes", "ok", "200 to 200"),
        ("FrozenLake-v1", "reward scale", "ok", "0 to 1"),
        (planted.Clock, "episodes", "ok", "20 episodes of 20 to 20"),
        (planted.RandomLength, "episodes", "ok", "0 truncated"),
        (planted.NumbersAsFlags, "flags", "note", "a int"),
        (planted.NarrowActions, "action bounds", "warning", "0.001"),
        (planted.Masked, "action mask", "ok", "forbidden ones in 100%"),
        (planted.Refuses, "action mask", "ok", "forbidden ones in 0%"),
        (planted.ForbidsNothing, "action mask", "note", "forbid nothing"),
        (planted.UnseededStep, "restore class", "note", "of class boundary"),
        (planted.Walk, "restore class", "ok", "of class repeat"),
        (planted.Walk, "throughput", "ok", "agent steps per second"),
        (planted.NoReward, "play", "fault", "(<NoReward instance>)"),
    ],
)
def test_a_verdict_says_what_was_seen(env: Any, name: str, severity: str, text: str) -> None:
    found = finding_of(env, name, recipe="none")
    assert (found.severity, text in found.found) == (severity, True), found


def test_it_is_too_early_to_judge_when_no_episode_could_end() -> None:
    few: dict[str, Any] = {"play_steps": 100}
    assert "too few to judge" in finding_of(planted.Endless, "episodes", **few).found
    limit = {"wrappers": ["TimeLimit(700)", "TimeLimit(900)"]}
    known = finding_of(planted.Endless, "episodes", play_steps=600, **limit)
    assert (known.severity, known.found) == (
        "note",
        "no episode ended in 600 steps; they are cut after 700",
    )


def test_rewards_are_missed_when_there_are_none() -> None:
    none = finding_of(planted.Walk, "reward scale", wrappers=["ScaleReward(0)"])
    assert none.severity == "note"
    assert "is 0" in none.found


def test_a_recurrent_network_is_warned_of_when_it_never_reads_its_state() -> None:
    found = finding_of(planted.Walk, "recurrent state", policy=planted.Stateless())
    assert found.severity == "warning"


def test_environments_are_counted_when_a_list_of_them_is_given() -> None:
    batch = finding_of([planted.Walk] * 3, "batch", horizon=64)
    assert batch.found.startswith("192 steps per rollout")
    assert finding_of(planted.Walk(), "batch", horizon=64).found.startswith("64 steps")


def test_every_episode_counts_when_an_environment_has_groups() -> None:
    with closing(make_vec_env(planted.Walk, num_envs=4, num_groups=2)) as vec_env:
        report = check_env(vec_env, **QUICK)
    texts = {finding.name: finding.found for finding in report.findings}
    assert report.is_healthy, str(report)
    num_cut = int(texts["episodes"].split()[-2])
    assert texts["final observation"].startswith(f"of {num_cut} truncated")


def test_numbers_are_refused_when_a_vec_env_of_ones_own_lets_them_pass() -> None:
    class Careless(SerialVecEnv):
        def recv(self, group: int, obs_out: Any) -> Any:
            result = super().recv(group, obs_out)
            result.rewards[0] = np.nan
            return result

    with closing(Careless([planted.Walk])) as vec_env:
        assert "reward of row 0 is nan at step 1" in finding_of(vec_env, "play").found


def test_a_constant_number_is_not_lost_when_it_is_large() -> None:
    class Far(planted.Walk):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

        def observe(self) -> Any:
            return np.array([self.place, 1e9])

    assert not check_env(Far, **QUICK, normalize_observations=True).faults


def test_a_constant_entry_is_no_fault_when_another_one_changes() -> None:
    class Partly(planted.Walk):
        observation_space = gymnasium.spaces.Dict(
            dict.fromkeys(("a", "b"), planted.Walk.observation_space)
        )

        def observe(self) -> Any:
            return {"a": super().observe(), "b": np.zeros(2, np.float32)}

    assert check_env(Partly, **QUICK).is_healthy


@pytest.mark.parametrize(("length", "is_accused"), [(50, True), (49, False)])
def test_two_equal_ends_are_enough_when_their_length_is_a_round_number(
    length: int, is_accused: bool
) -> None:
    class Late(planted.Endless):
        def reply(self, over: bool, late: bool) -> Any:
            observation, reward, *_ = super().reply(over, late)
            return observation, reward, self.steps >= length, False, {}

    report = check_env(Late, **{**QUICK, "play_steps": 100})
    names = {finding.name for finding in report.faults}
    assert ("terminated and truncated" in names) is is_accused, str(report)


def test_a_single_end_of_both_kinds_is_no_fault() -> None:
    class Once(planted.Endless):
        def reply(self, over: bool, late: bool) -> Any:
            observation, reward, *_ = super().reply(over, late)
            return observation, reward, self.steps >= 60, self.steps >= 60, {}

    assert finding_of(Once, "episodes", play_steps=100).found.startswith("1 episodes of 60 to 60")


def test_only_steps_that_were_taken_count_when_rows_are_reset_one_step_later() -> None:
    with closing(SyncVectorEnv([teams.Short] * 4)) as envs:
        assert " episodes of 12 to 12 steps" in finding_of(envs, "episodes").found


def test_masks_are_tried_with_real_actions_when_these_begin_elsewhere() -> None:
    class Shifted(planted.Masked):
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def step(self, action: Any) -> Any:
            if action not in self.action_space:
                raise ValueError("no such action")
            return super().step(action - 5)

    assert "forbidden ones in 100%" in finding_of(Shifted, "action mask").found


def test_flags_of_numpy_are_no_note() -> None:
    class Flags(planted.Walk):
        def reply(self, over: bool, late: bool) -> Any:
            return self.observe(), self.reward(), np.bool_(over), np.bool_(late), {}

    report = check_env(Flags, **QUICK)
    assert "flags" not in {finding.name for finding in report.findings}


def test_wrappers_of_settings_count_when_a_task_has_none() -> None:
    found = finding_of(Task(planted.Endless), "episodes", wrappers=["TimeLimit(50)"])
    assert "episodes of 50 to 50 steps" in found.found


def test_actions_are_not_judged_when_seeds_are_not_obeyed() -> None:
    report = check_env(planted.UnseededStep, **QUICK)
    assert "actions" not in {finding.name for finding in report.findings}


def test_nothing_is_probed_when_the_network_has_a_fault() -> None:
    found = finding_of(planted.Walk, "probes", policy=planted.CutActor(), probes=True)
    assert (found.severity, found.found) == ("note", "not run: the network has a fault")


def test_only_values_are_probed_when_there_is_a_single_action() -> None:
    class Single(planted.Walk):
        action_space = gymnasium.spaces.Discrete(1)

    report = check_env(Single, **{**QUICK, "probes": True})
    probes = [finding for finding in report.findings if finding.name.startswith("probe")]
    assert [(probe.name, probe.severity) for probe in probes] == [("probe: value only", "ok")]


@pytest.mark.parametrize(("env", "steps"), [(teams.Dice, 1000), (teams.Returns, 100)])
def test_last_observations_are_not_accused_when_agents_come_and_go(env: Any, steps: int) -> None:
    """What absent agents see counts neither among beginnings nor among the steps between."""
    found = finding_of(env, "final observation", play_steps=steps)
    assert found.severity == "ok", found


def test_a_free_deviation_hides_no_cut_when_actions_are_continuous() -> None:
    class Pushed(planted.DeadDimension):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    found = finding_of(Pushed, "gradients", policy=planted.CutActor())
    assert found.severity == "fault"
    assert "from the actor" in found.found
