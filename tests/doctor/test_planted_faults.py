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

import tests.doctor.planted_faults as planted
from metta import check_env
from metta.rl.learn.custom_losses import CustomLoss

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
    (planted.InvertedMask, "action mask", "fault", "forbidden ones in 100%"),
    (planted.Endless, "episodes", "warning", "no episode ended"),
    (planted.DeadDimension, "actions", "warning", "parts 2 of 3"),
    (planted.AliasedBuffer, "observation buffers", "warning", "changed"),
    (planted.ResetsItself, "final observation", "fault", "truncated"),
    (planted.LosesFinalObservation(), "final observation", "fault", "truncated"),
    (planted.RareNan, "finite numbers", "fault", "observation"),
    (planted.NanReward, "finite numbers", "fault", "reward"),
    (planted.OutsideOfSpace, "observation space", "warning", "outside"),
    (planted.WrongDtype, "observation space", "warning", "float64 instead of float32"),
    (planted.WrongShape, "observation space", "fault", "shape"),
    (planted.NoReward, "rewards", "fault", "None"),
    (planted.TextReward, "rewards", "fault", "much"),
    (planted.ConstantObservation, "observations", "warning", "equal"),
    (planted.OldApi, "step", "fault", "4 values"),
    (planted.RaisesLater, "step", "fault", "IndexError"),
    (planted.WideActions, "action bounds", "warning", "1e+04"),
]

LEARNERS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"policy": planted.CutActor()}, "gradients", "fault", "actor"),
    ({"policy": planted.BlindActor()}, "probe: one step", "fault", "BlindActor"),
    ({"policy": planted.MixedRows()}, "rows", "fault", "other rows"),
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
    finding = problem_of(check_env(env, play_steps=STEPS, probes=False), name)
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
    finding = problem_of(check_env(planted.Walk, play_steps=500, **learner), name)
    assert finding.severity == severity
    assert text in f"{finding.found} {finding.cause}"
    assert finding.cure
