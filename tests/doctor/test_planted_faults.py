"""The doctor finds each planted fault, and names it.

Through `check_env` these run: metta.doctor.doctor,
metta.doctor.play_checks,
metta.doctor.players,
metta.doctor.probe_env,
metta.doctor.probes,
metta.doctor.recording,
metta.doctor.repeat_checks,
metta.doctor.reply_checks,
metta.doctor.report,
metta.doctor.setup_checks,
metta.doctor.subject,
metta.doctor.wiring_checks.
"""

from typing import Any

import pytest
import torch

import tests.doctor.planted_faults as planted
from metta import check_env
from metta.curriculum import Task
from metta.rl.learn.custom_losses import CustomLoss
from tests.envs.tasks_and_agents import Party

STEPS = 1500

ENVIRONMENTS: list[tuple[Any, str, str, str]] = [
    (planted.MergedFlags, "terminated and truncated", "fault", "exactly 30 steps"),
    (planted.TwinFlags, "terminated and truncated", "fault", "both"),
    (planted.UnseededReset, "seeding", "warning", "two resets"),
    (planted.UnseededStep, "seeding", "warning", "at step 1"),
    (planted.HugeReward, "reward scale", "warning", "e+05"),
    (planted.HugeObservation, "observation scale", "warning", "e+04"),
    (planted.FarObservation, "observation precision", "fault", "1e+09"),
    (planted.MaskInMethod, "action mask", "fault", "action_masks"),
    (planted.MaskUnderOtherName, "action mask", "fault", "legal_actions"),
    (planted.MaskInOtherEntry, "action mask", "fault", "the observation['avail_actions']"),
    (planted.InvertedMask, "action mask", "fault", "forbidden ones in 100%"),
    (planted.Endless, "episodes", "warning", "no episode ended"),
    (planted.DeadDimension, "actions", "warning", "3 parts, those of index 2 change"),
    (planted.AliasedBuffer, "observation buffers", "warning", "changed"),
    (planted.ResetsItself, "final observation", "fault", "truncated"),
    (planted.LosesFinalObservation(), "final observation", "fault", "truncated"),
    (planted.RareNan, "play", "fault", "observation 'obs' of row 0 is nan"),
    (planted.NanReward, "play", "fault", "reward of row 0 is nan"),
    (planted.OutsideOfSpace, "observation space", "warning", "outside"),
    (planted.WrongDtype, "observation space", "warning", "float64 instead of float32"),
    (planted.WrongShape, "observation space", "fault", "shape"),
    (planted.NoReward, "play", "fault", "None"),
    (planted.TextReward, "play", "fault", "much"),
    (planted.ConstantObservation, "observations", "warning", "equal"),
    (planted.OldApi, "play", "fault", "does not return 5 values"),
    (planted.RaisesLater, "play", "fault", "IndexError"),
    (planted.FailsToClose, "play", "fault", "close"),
    (planted.WideActions, "action bounds", "warning", "1e+04"),
]

LEARNERS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"policy": planted.CutActor()}, "gradients", "fault", "actor"),
    ({"policy": planted.BlindActor()}, "probe: one step", "fault", "BlindActor"),
    ({"policy": planted.MixedRows()}, "rows", "fault", "other rows"),
    ({"policy": planted.MixedCritic()}, "rows", "fault", "other rows"),
    ({"policy": planted.TooManyLogits()}, "network", "fault", "4 action parameters"),
    ({"policy": planted.Unforgetting()}, "recurrent state", "fault", "starts"),
    ({"losses": [planted.wrong_value_loss]}, "probe: value only", "fault", "wrong_value_loss"),
    (
        {"losses": [planted.sound_loss, CustomLoss(planted.wrong_policy_loss, weight=3.0)]},
        "probe: one step",
        "fault",
        "without the loss 'wrong_policy_loss'",
    ),
    ({"losses": [planted.idle_loss]}, "losses", "warning", "idle_loss"),
    ({"gamma": 0.0}, "probe: delayed reward", "fault", "default settings"),
    ({"minibatch_size": 100}, "batch", "fault", "divide"),
    ({"num_minibatches": 512}, "batch", "warning", "minibatches of 2"),
    ({"learning_rate": 0.5}, "learning rate", "warning", "0.5"),
    ({"num_envs": 2_000_000, "horizon": 4096}, "memory", "fault", "MB"),
]


def problem_of(report: Any, name: str) -> Any:
    found = [finding for finding in report.problems if finding.name == name]
    assert found, str(report)
    return found[0]


@pytest.mark.parametrize(
    ("env", "name", "severity", "text"),
    ENVIRONMENTS,
    ids=[getattr(case[0], "__name__", type(case[0]).__name__) for case in ENVIRONMENTS],
)
def test_a_fault_of_an_environment_is_found_when_it_is_planted(
    env: Any, name: str, severity: str, text: str
) -> None:
    report = check_env(env, play_steps=STEPS, probes=False, recipe="none")
    finding = problem_of(report, name)
    assert finding.severity == severity
    assert text in finding.found
    assert finding.cause
    assert finding.cure


@pytest.mark.parametrize(
    ("learner", "name", "severity", "text"), LEARNERS, ids=[case[1] for case in LEARNERS]
)
def test_a_fault_of_a_learner_is_found_when_it_is_planted(
    learner: dict[str, Any], name: str, severity: str, text: str
) -> None:
    report = check_env(planted.Walk, play_steps=500, recipe="none", **learner)
    finding = problem_of(report, name)
    assert finding.severity == severity
    assert text in f"{finding.found} {finding.cause}"
    assert finding.cure


def test_masks_count_when_the_doctor_compares_equal_seeds() -> None:
    report = check_env(planted.RandomMask, play_steps=300, probes=False)
    assert problem_of(report, "seeding").severity == "warning"


def test_an_observation_counts_once_when_several_of_its_parts_do_not_fit() -> None:
    report = check_env(planted.TwoNarrowLeaves, play_steps=300, probes=False)
    count, _, total, *_ = problem_of(report, "observation space").found.split()
    assert count == total


def test_other_checks_are_made_in_wrappers_when_settings_name_them() -> None:
    endless: dict[str, Any] = {"env": planted.Endless, "play_steps": 600, "probes": False}
    cure = problem_of(check_env(**endless), "episodes").cure
    assert "wrappers=[TimeLimit(1000)]" in cure
    for env in (planted.Endless, Task(planted.Endless, wrappers=("TimeLimit(50)",))):
        own = () if isinstance(env, Task) else ("TimeLimit(50)",)
        report = check_env(**{**endless, "env": env}, wrappers=own)
        assert report.is_healthy, str(report)
        assert "12 episodes of 50 to 50 steps" in str(report)


def test_settings_of_the_recipe_count_when_none_are_given() -> None:
    quick: dict[str, Any] = {"play_steps": 300, "probes": False}
    assert problem_of(check_env(planted.HugeReward, **quick, recipe="none"), "reward scale")
    report = check_env(planted.HugeReward, **quick)
    assert report.is_healthy, str(report)
    assert "1,024 steps per rollout, 16 minibatches of 64 x 10 passes" in str(report)


def test_an_environment_stays_open_when_it_existed_before() -> None:
    class Agents(Party):
        closed = False

        def close(self) -> None:
            self.closed = True

    agents = Agents()
    check_env(agents, play_steps=100, probes=False)
    assert not agents.closed
    report = check_env(planted.FailsToClose(), play_steps=100, probes=False)
    assert not report.faults, str(report)


def test_a_policy_and_a_configuration_are_read_as_the_trainer_reads_them() -> None:
    config = {"trainer": {"optimizer": {"learning_rate": 0.5}}}
    report = check_env(planted.Walk, "MlpPolicy", config=config, play_steps=100, probes=False)
    assert [problem.name for problem in report.problems] == ["learning rate"]


def test_random_numbers_of_the_process_are_left_alone() -> None:
    network, before = planted.Lstm(), torch.get_rng_state()
    check_env(planted.Walk, network, play_steps=100, probes=False)
    assert torch.equal(torch.get_rng_state(), before)
