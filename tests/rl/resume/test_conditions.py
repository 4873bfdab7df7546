"""A run continues under the conditions that it was saved under, or says in what they differ."""

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from metta.cli.main import main
from metta.errors import InexactResumeError, MettaWarning
from metta.rl.clean_trainer import Trainer
from metta.rl.learn.numerics import NumericsPlan
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.conditions import RunConditions, machine_of
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

PLAN = NumericsPlan(
    threads=1, actor="numpy", driver="eager", groups=1, dtype="float32", device="cpu"
)

ALL = ("threads", "driver")


def saved(**changes: Any) -> dict[str, Any]:
    """The state of a run under this machine's conditions, with some of them changed."""
    state = RunConditions(PLAN, are_set=ALL).state_dict()
    for part in state.values():
        part.update({name: value for name, value in changes.items() if name in part})
    return state


def test_nothing_is_said_when_the_conditions_are_the_same() -> None:
    conditions = RunConditions(PLAN, are_set=ALL)
    conditions.load_state_dict(saved())
    assert (conditions.plan, conditions.differences) == (PLAN, [])


def test_every_library_and_the_processor_are_named_when_the_machine_is_described() -> None:
    described = machine_of()
    assert {"metta-rl", "torch", "numpy", "gymnasium", "python", "machine"} <= set(described)
    assert described["torch"] == torch.__version__
    assert described["instructions"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"torch": "1.0"}, "torch was 1.0, now "),
        ({"numpy": "0.9"}, "numpy was 0.9, now "),
        ({"driver": "step"}, "driver was step, now eager"),
        ({"actor": "eager"}, "actor was eager, now numpy"),
        ({"device": "cuda:0"}, "device was cuda:0, now cpu"),
        ({"instructions": "VSX"}, "instructions was VSX, now "),
        ({"processor": "Z80"}, "processor was Z80, now "),
        ({"MKL_CBWR": "COMPATIBLE"}, "MKL_CBWR was COMPATIBLE, now not set"),
    ],
)
def test_the_difference_is_named_when_a_condition_differs(change: Any, text: str) -> None:
    conditions = RunConditions(PLAN, are_set=ALL)
    with pytest.raises(InexactResumeError, match=text) as raised:
        conditions.load_state_dict(saved(**change))
    assert "allow_inexact=True of functional_training_loop" in str(raised.value)
    conditions.allow_inexact = True
    with pytest.warns(MettaWarning, match=text):
        conditions.load_state_dict(saved(**change))
    assert len(conditions.differences) == 1


def test_a_checkpoint_that_says_less_about_its_machine_resumes() -> None:
    state = saved()
    for name in ("processor", "MKL_CBWR", "OPENBLAS_CORETYPE"):
        del state["machine"][name]
    conditions = RunConditions(PLAN, are_set=ALL)
    conditions.load_state_dict(state)
    assert conditions.differences == []


def test_every_difference_is_named_when_there_are_several() -> None:
    with pytest.raises(InexactResumeError) as raised:
        RunConditions(PLAN, are_set=ALL).load_state_dict(
            saved(torch="1.0", driver="step", threads=7)
        )
    assert all(word in str(raised.value) for word in ("torch", "driver", "threads was 7, now 1"))


def test_the_saved_threads_are_used_when_nobody_chose_their_number() -> None:
    conditions = RunConditions(PLAN, are_set=("driver",))
    conditions.load_state_dict(saved(threads=2))
    assert conditions.plan == dataclasses.replace(PLAN, threads=2)
    with conditions.plan.applied():
        assert torch.get_num_threads() == 2


# Whole runs.

SMALL = {
    "env": "CartPole-v1",
    "total_timesteps": 32,
    "num_envs": 2,
    "horizon": 8,
    "hidden_size": 8,
    "eval_episodes": 0,
    "verbose": False,
    "threads": 1,
}


def train(folder: Path, allow_inexact: bool | None = None, **more: Any) -> Trainer:
    config = apply_settings(TrainingConfig(), {**SMALL, **more})
    with Trainer(config, run_dir=folder, allow_inexact=allow_inexact) as trainer:
        trainer.train()
    return trainer


def test_a_run_is_refused_or_goes_on_when_its_threads_change(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(InexactResumeError, match="threads was 1, now 2"):
        train(tmp_path, threads=2, total_timesteps=64)
    assert train(tmp_path, total_timesteps=48).state.epoch == 3  # nothing was lost
    with pytest.warns(MettaWarning, match="threads was 1, now 2"):
        trainer = train(tmp_path, allow_inexact=True, threads=2, total_timesteps=64)
    assert trainer.state.epoch == 4
    assert train(tmp_path, threads=2, total_timesteps=80).state.epoch == 5  # its conditions now


def test_the_saved_threads_are_used_when_a_run_goes_on_and_nobody_chose_them(
    tmp_path: Path,
) -> None:
    train(tmp_path, threads=2)
    trainer = train(tmp_path, threads=0, total_timesteps=64)
    assert trainer.components is not None
    assert trainer.components.plan.threads == 2


def test_the_command_says_what_to_do_when_conditions_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run")
    words = ["resume", str(tmp_path / "run"), "total_timesteps=64", "threads=2"]
    assert main(words) == 2
    assert re.search(
        "threads was 1, now 2.*accept that with --allow-inexact", capsys.readouterr().err
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main([*words, "--allow-inexact"]) == 0
    assert "continues under other conditions" in capsys.readouterr().err


def test_a_trainer_is_refused_when_its_checkpoints_were_made_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"num_envs": 2, "horizon": 8, "hidden_size": 8, "checkpoint_dir": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(
            "metta.rl.resume.conditions.machine_of",
            lambda device="cpu": {**machine_of(device), "torch": "1.0"},
        )
        with PPOTrainer(None, "CartPole-v1", **options) as trainer:
            trainer.train(32)
    with pytest.raises(InexactResumeError, match=r"torch was 1\.0"):
        PPOTrainer(None, "CartPole-v1", **options)
    with (
        pytest.warns(MettaWarning, match=r"torch was 1\.0"),
        PPOTrainer(None, "CartPole-v1", **options, allow_inexact=True) as trainer,
    ):
        assert trainer.state.agent_step == 32


def test_the_saved_driver_is_taken_over_when_nobody_chose_one() -> None:
    asked: list[str] = []

    def select(plan: NumericsPlan) -> NumericsPlan:
        asked.append(plan.driver)
        return plan

    conditions = RunConditions(PLAN, are_set=("threads",), select_saved=select)
    conditions.load_state_dict(saved(driver="step"))
    assert (conditions.plan.driver, conditions.differences, asked) == ("step", [], ["step"])


def test_a_driver_that_cannot_be_taken_over_is_a_difference() -> None:
    conditions = RunConditions(PLAN, are_set=("threads",), select_saved=lambda _: PLAN)
    with pytest.raises(InexactResumeError, match="driver was step, now eager"):
        conditions.load_state_dict(saved(driver="step"))


def test_checkpoints_without_a_compiler_in_their_plan_go_on() -> None:
    state = saved()
    del state["plan"]["compiler"]
    conditions = RunConditions(PLAN, are_set=ALL)
    conditions.load_state_dict(state)
    assert conditions.differences == []


def test_saved_threads_are_taken_over_and_nothing_is_compiled_when_no_driver_was_chosen_yet() -> (
    None
):
    def select(plan: NumericsPlan) -> NumericsPlan:
        raise AssertionError(f"compiled for {plan}")

    plan = dataclasses.replace(PLAN, driver="auto")
    conditions = RunConditions(plan, select_saved=select)
    conditions.load_state_dict(saved(driver="auto", threads=2))
    assert (conditions.plan.threads, conditions.plan.driver) == (2, "auto")
