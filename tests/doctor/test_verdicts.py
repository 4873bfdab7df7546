"""What the doctor says of set-ups that have no fault: notes, and reasons not to accuse."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

import tests.doctor.planted_faults as planted
from metta import check_env
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


def test_a_free_deviation_hides_no_cut_when_actions_are_continuous() -> None:
    class Pushed(planted.DeadDimension):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    found = finding_of(Pushed, "gradients", policy=planted.CutActor())
    assert found.severity == "fault"
    assert "from the actor" in found.found
