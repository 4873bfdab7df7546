"""Evaluation in a process of its own: what it finds, what it costs a run, and how it ends."""

import functools
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faults.zygote import Zygote
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.envs.workers.process_end import ProcessEnd
from metta.errors import HookError, MettaWarning
from metta.private_folders import sweep_scratch
from metta.rl.evaluate.background import BackgroundEvaluation, EvaluationRequest
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.hooks import EvaluationHook, TrainerHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim import simulation
from metta.store.policies.file import save_policy
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig
from metta.train.train_config import EvaluationConfig

SMALL = {"num_envs": 2, "n_steps": 8, "hidden_size": 8, "n_epochs": 1, "num_minibatches": 1}
CONFIG = EvaluationConfig(eval_episodes=4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where policies are frozen; none may be left in it."""
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "cache" / "scratch"
    yield place
    assert list(place.glob("evaluation-*")) == []


class Hanging(CorridorEnv):
    def _advance(self, action: int) -> Any:
        while True:
            time.sleep(60)


class Dying(CorridorEnv):
    def _advance(self, action: int) -> Any:
        os._exit(7)


class Failing(CorridorEnv):
    def _advance(self, action: int) -> Any:
        raise RuntimeError("no display")


def corridor_policy(seed: int = 1) -> Policy:
    env = CorridorEnv()
    return make_policy(env.observation_space, env.action_space, seed=seed)


class Own(nn.Module):
    """A network that only this file knows, with a tensor that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.scale = torch.full((1,), 2.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs) * self.scale
        return out[:, :2], out[:, 2]


def test_scores_are_those_of_the_policy_as_it_was_when_it_changes_afterwards() -> None:
    env = CorridorEnv()
    policies = [corridor_policy(), Policy(Own(), env.observation_space, env.action_space)]
    evaluator = PolicyEvaluator(CorridorEnv, CONFIG, seed=5)
    expected = []
    evaluations = BackgroundEvaluation(PolicyEvaluator(CorridorEnv, CONFIG, seed=5), 60.0)
    try:
        for epoch, policy in enumerate(policies, 1):
            evaluator.evaluate(policy)
            expected.append(evaluator.results.to_dict())
            evaluations.submit(EvaluationRequest(epoch, 10 * epoch, f"uri{epoch}"), policy)
            for parameter in policy.parameters():
                parameter.data.zero_()
        outcomes = evaluations.collect(wait=True)
        assert evaluations.collect() == []
    finally:
        evaluations.close()
        evaluations.close()
    assert [one.moment for one in outcomes] == [
        EvaluationRequest(1, 10, "uri1"),
        EvaluationRequest(2, 20, "uri2"),
    ]
    found = [one.results.to_dict() for one in outcomes if one.results is not None]
    assert found == expected
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("env", "timeout", "words"),
    [
        (Dying, 60.0, "its process ended with exit code 7 before it had a result"),
        (Hanging, 0.5, r"it took longer than eval_timeout_seconds=0\.5, and was ended"),
        (Failing, 60.0, "EnvError: .*no display"),
    ],
)
def test_the_outcome_says_why_when_an_evaluation_fails(
    env: Any, timeout: float, words: str
) -> None:
    evaluations = BackgroundEvaluation(PolicyEvaluator(env, CONFIG), timeout)
    try:
        evaluations.submit(EvaluationRequest(1, 1), corridor_policy())
        (outcome,) = evaluations.collect(wait=True)
        assert outcome.results is None
        with pytest.raises(Exception, match=words):
            raise outcome.error or AssertionError
        # the next one is played by a process that works
        evaluations.evaluator, evaluations.timeout_seconds = (
            PolicyEvaluator(CorridorEnv, CONFIG),
            60,
        )
        evaluations.submit(EvaluationRequest(2, 2), corridor_policy())
        (outcome,) = evaluations.collect(wait=True)
        assert outcome.results is not None
    finally:
        evaluations.close()


class DyingOnce(CorridorEnv):
    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = Path(marker)

    def _advance(self, action: int) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os._exit(7)
        return super()._advance(action)


@pytest.mark.parametrize("is_in_file", [False, True])
def test_an_evaluation_is_played_again_when_its_process_dies(
    tmp_path: Path, is_in_file: bool
) -> None:
    policy, file = corridor_policy(), tmp_path / "policy.safetensors"
    expected = PolicyEvaluator(CorridorEnv, CONFIG).evaluate(policy)
    env = functools.partial(DyingOnce, str(tmp_path / "has-died"))
    evaluations = BackgroundEvaluation(PolicyEvaluator(env, CONFIG), 60.0)
    if is_in_file:
        save_policy(file, policy)
    try:
        evaluations.submit(EvaluationRequest(1, 1), policy, file if is_in_file else None)
        (outcome,) = evaluations.collect(wait=True)
    finally:
        evaluations.close()
    assert outcome.error is None
    assert outcome.results is not None
    assert outcome.results.summary.avg_category_score == expected.avg_category_score
    assert file.exists() == is_in_file


def test_any_number_waits_in_files_when_evaluations_take_long(folder: Path) -> None:
    evaluations = BackgroundEvaluation(PolicyEvaluator(Hanging, CONFIG), 600.0)
    try:
        for epoch in range(1, 21):
            evaluations.submit(EvaluationRequest(epoch, 0), corridor_policy())
        assert evaluations.epochs == evaluations.unfinished == {*range(1, 21)}
        assert len(list(folder.glob("evaluation-*/*/policy.safetensors"))) == 20
        pid = evaluations.pid
        assert pid is not None
        assert evaluations.collect() == []
    finally:
        evaluations.close()
    assert ProcessEnd(pid).within(10)
    assert evaluations.pid is None


class Client:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def record_evaluation(self, **record: Any) -> None:
        self.records.append(record)


class Saving(TrainerHook):
    """Stands for the checkpoint hook."""

    order, role = 10, "checkpoint"

    def __init__(self) -> None:
        self.saving, self.owed_evaluations = self, None
        self.late: list[tuple[str, Any]] = []
        self.awaited: list[set[int]] = []

    def await_scores(self, epochs: Any) -> None:
        if [set(epochs)] != self.awaited[-1:]:
            self.awaited.append(set(epochs))

    def policy_uri_of(self, epoch: int) -> str:
        return f"file://policy{epoch}"

    def save_late_score(self, epoch: int, scores: Any) -> None:
        self.late.append((epoch, scores))

    def close(self) -> None:
        pass


class Watching(TrainerHook):
    """Lets evaluations end before the next epoch, and looks at what other hooks see."""

    order = 30

    def __init__(self, hook: EvaluationHook) -> None:
        self.hook = hook
        self.seen: list[tuple[Any, Any]] = []

    def on_epoch_end(self, trainer_state: Any) -> None:
        self.seen.append((trainer_state.late_scores, trainer_state.eval_epoch))
        assert self.hook._elsewhere is not None
        self.hook._elsewhere.wait()


def judged(background: bool, **config: Any) -> tuple[Any, ...]:
    settings = EvaluationConfig(
        eval_episodes=4, where="process" if background else "here", **config
    )
    hook = EvaluationHook(settings, Curriculum(env=CorridorEnv), seed=3)
    client, saving, watching = Client(), Saving(), Watching(hook)
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        trainer.components.hooks.stats_client = client
        hooks = [hook, saving, *([watching] if background else [])]
        trainer.train(16 * 4, hooks=hooks)
        return trainer.state, client, saving, watching, trainer.digest(), hook


def test_scores_belong_to_their_epoch_when_they_arrive_later() -> None:
    state, client, saving, watching, digest, hook = judged(True, evaluate_interval=2)
    expected = judged(False, evaluate_interval=2)
    assert [record["epoch"] for record in client.records] == [2, 4]
    rows = [record["scores"].pop("late_row") for record in client.records]
    assert client.records == expected[1].records
    assert rows[1] == state.eval_scores.to_metrics()
    assert (digest, state.eval_epoch) == (expected[4], 4)
    assert hook.get_eval_scores() == state.eval_scores == expected[0].eval_scores
    # what is saved does not know of them before the end, others do when they arrive
    arrived = [[one.epoch for one in late] for late, _ in watching.seen]
    assert arrived == [[], [], [2], []]
    assert [epoch for _, epoch in watching.seen] == [None] * 4
    assert saving.late == [(2, watching.seen[2][0][0].scores)]
    # its checkpoint stays until then
    assert saving.awaited == [set(), {2}, set(), {4}, set()]
    episodes = client.records[0]["scores"]["episodes"]["training/CorridorEnv"]
    assert (len(episodes["returns"]), episodes["num_missing"]) == (4, 0)


def test_a_failure_warns_and_several_stop_training_when_the_process_dies() -> None:
    config = EvaluationConfig(evaluate_interval=1, where="process", max_eval_failures=2)
    hook = EvaluationHook(config, Curriculum(env=Dying))
    with (
        PPOTrainer(None, CorridorEnv, **SMALL) as trainer,
        pytest.warns(MettaWarning, match=r"evaluation failed at epoch 1 \(1 in a row, 2 stop"),
        pytest.raises(HookError, match="exit code 7"),
    ):
        trainer.train(16 * 3, hooks=[hook])


def test_missing_episodes_are_told_of_when_a_time_limit_ended_a_simulation() -> None:
    def endless() -> CorridorEnv:
        """Made in the process that plays, where a second passes with each step from then on."""
        simulation.time = SimpleNamespace(monotonic=itertools.count().__next__)  # type: ignore[attr-defined]
        return CorridorEnv(max_steps=10**9, length=8)

    class Still(nn.Module):
        """Walks left for ever, where it may."""

        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Linear(8, 1)

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor([100.0, 0.0]).expand(len(obs), 2), self.value(obs)

    env = CorridorEnv()
    policy = Policy(Still(), env.observation_space, env.action_space)
    suite = SimulationSuiteConfig(simulations={"training/x": SimulationConfig(max_seconds=500)})
    config = EvaluationConfig(eval_episodes=3, where="process")
    task = Curriculum(env=[CorridorEnv, endless]).task
    evaluator = PolicyEvaluator(suite, config, training_task=task)
    hook = EvaluationHook(config, evaluator=evaluator)
    with (
        PPOTrainer(policy, CorridorEnv, **SMALL) as trainer,
        pytest.warns(MettaWarning, match=r"missing episodes: \{'training/x': 1\}"),
    ):
        trainer.train(16, hooks=[hook])
    assert hook.eval_scores.simulation_scores == {"training/x": pytest.approx(-6.4)}
    assert simulation.time is time


def test_nobody_waits_when_a_signal_says_to_hurry() -> None:
    class Hurry(TrainerHook):
        def on_epoch_end(self, trainer_state: Any) -> None:
            trainer_state.shared["stop_signal"] = signal.SIGTERM
            trainer_state.request_stop("signal")

    config = EvaluationConfig(evaluate_interval=1, where="process", eval_timeout_seconds=10_000.0)
    hook = EvaluationHook(config, Curriculum(env=Hanging))
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        trainer.train(16 * 50, hooks=[hook, Hurry()])
        assert trainer.state.epoch == 1
    assert hook.eval_scores.simulation_scores == {}


def test_training_goes_on_and_waits_no_longer_than_configured_at_its_end() -> None:
    config = EvaluationConfig(evaluate_interval=1, where="process", end_wait_seconds=1.5)
    said: list[str] = []
    hook = EvaluationHook(config, Curriculum(env=Hanging), announce=said.append)
    with (
        PPOTrainer(None, CorridorEnv, **SMALL) as trainer,
        pytest.warns(MettaWarning) as caught,
    ):
        trainer.train(16 * 12, hooks=[hook])
    assert (trainer.state.epoch, trainer.state.owes_scores) == (12, True)
    many, owed = (str(one.message) for one in caught)
    assert many.startswith("9 policies wait for their scores, in files, and training continues")
    epochs = "epochs 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..."
    assert said == [f"waiting for the scores of {epochs} (up to 1.5 s; Ctrl-C stops waiting)"]
    assert owed == (
        f"the scores of {epochs} did not arrive within end_wait_seconds=1.5; they are lost: nothing was "
        "saved"
    )


def test_no_process_is_left_when_the_trainer_is_killed(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pid"
    trainer = zygote.start(
        "tests.rl.evaluate.hanging_children:train", told=str(told), cache=str(tmp_path / "killed")
    )
    while not told.exists():
        with pytest.raises(TimeoutError):
            trainer.wait(0.02)
    judge = ProcessEnd(int(told.read_text()))
    assert not judge.within(0)
    trainer.kill()
    trainer.wait()
    assert judge.within(60)
    judge.close()
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path / "killed"))
    sweep_scratch()  # as the next training does
    left = list((tmp_path / "killed" / "scratch").glob("evaluation-*"))
    assert left == []
