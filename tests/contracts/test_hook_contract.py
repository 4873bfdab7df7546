"""What every hook must do, shipped or written by a user: one suite over all of them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import HookError, MettaWarning
from metta.loggers import CsvSink, EventLog, StatsClient, StatsLogger
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks import CheckpointHook, EvaluationHook, MetricsHook, TrainerHook
from metta.rl.hooks.base import EVENTS
from metta.rl.resume.checkpointer import CheckpointManager
from metta.train.settings import apply_settings
from metta.train.train_config import EvaluationConfig, LoggingConfig, TrainingConfig

SMALL = {
    "total_timesteps": 48,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
}


class Everything(TrainerHook):
    """Hears every event with everything it offers."""

    def _hear(self, **offers: Any) -> None:
        offers["trainer_state"].shared.setdefault("heard", []).append(len(offers))

    on_training_start = on_epoch_start = on_rollout_start = on_rollout_end = _hear
    on_update_end = on_epoch_end = on_checkpoint = on_training_end = on_exception = close = _hear


class OddSignatures:
    """No base class; static, class, partial, positional-only, keyword-only and defaulted parameters."""

    order = 1

    def __init__(self) -> None:
        self.on_rollout_start = functools.partial(self.heard, "partial")

    @staticmethod
    def on_epoch_start(trainer_state: Any) -> None:
        trainer_state.shared["static"] = True

    @classmethod
    def on_rollout_end(cls, experience: Any, rollout_stats: Any, /) -> None:
        assert experience.horizon == 8
        assert "episode_return" in rollout_stats

    def on_update_end(self, *, losses_stats: Any) -> None:
        assert "policy_loss" in losses_stats

    def on_epoch_end(self, trainer_state: Any = None, *rest: Any, **offers: Any) -> None:
        assert trainer_state is not None
        assert not rest
        assert "policy" in offers

    def heard(self, how: str) -> None:
        self.how = how


class Quiet(TrainerHook):
    def close(self) -> None:
        pass


def metrics(folder: Path) -> MetricsHook:
    log = EventLog(folder / "events.jsonl")
    logger = StatsLogger([CsvSink(folder / "metrics.csv")], event_log=log, run_dir=folder)
    settings = LoggingConfig(grad_stats_interval=1, weight_stats_interval=1, monitor_seconds=0.01)
    return MetricsHook(None, StatsClient(log), verbose=False, logger=logger, config=settings)


HOOKS: dict[str, Callable[[Path], Any]] = {
    "metrics": metrics,
    "metrics, nothing to do": lambda _: MetricsHook(verbose=False),
    "checkpoint": lambda folder: CheckpointHook(CheckpointManager(folder), 1, 1),
    "checkpoint, nothing to do": lambda _: CheckpointHook(None, 1, 1),
    "evaluation": lambda _: EvaluationHook(
        EvaluationConfig(evaluate_interval=1, eval_episodes=1), Curriculum(env=CorridorEnv)
    ),
    "evaluation, nothing to do": lambda _: EvaluationHook(None, Curriculum(env=CorridorEnv)),
    "everything": lambda _: Everything(),
    "odd signatures": lambda _: OddSignatures(),
    "quiet": lambda _: Quiet(),
}


@pytest.fixture(params=HOOKS)
def hook(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return HOOKS[request.param](tmp_path)


def new_trainer(**more: Any) -> Trainer:
    config = apply_settings(TrainingConfig(), {**SMALL, **more})
    return Trainer(config, Curriculum(env=CorridorEnv))


@pytest.fixture(scope="module")
def expected() -> str:
    with new_trainer() as trainer:
        trainer.train()
        return trainer.policy.parameter_hash()


def test_training_is_unchanged_when_the_hook_listens(hook: Any, expected: str) -> None:
    with new_trainer() as trainer:
        trainer.add_hook(hook)
        state = trainer.train()
        assert state.epoch == 3
        assert trainer.policy.parameter_hash() == expected


class Adder(TrainerHook):
    """Adds, takes out or swaps a hook when the second epoch begins."""

    def __init__(self, trainer: Trainer, act: Callable[[Trainer], Any]) -> None:
        self.trainer, self.act = trainer, act

    def on_epoch_start(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 1:
            self.act(self.trainer)


def test_training_is_unchanged_when_the_hook_comes_in_the_middle(hook: Any, expected: str) -> None:
    with new_trainer() as trainer:
        trainer.add_hook(Adder(trainer, lambda trainer: trainer.add_hook(hook)))
        trainer.train()
        assert trainer.policy.parameter_hash() == expected


def test_training_is_unchanged_when_the_hook_leaves_in_the_middle(hook: Any, expected: str) -> None:
    with new_trainer() as trainer:
        trainer.add_hook(hook)
        trainer.add_hook(Adder(trainer, lambda trainer: trainer.remove_hook(hook)))
        trainer.train()
        assert trainer.policy.parameter_hash() == expected
        assert hook not in trainer.hooks


def test_training_is_unchanged_when_the_hook_is_swapped_for_another(
    hook: Any, expected: str
) -> None:
    with new_trainer() as trainer:
        trainer.add_hook(hook)
        trainer.add_hook(Adder(trainer, lambda trainer: trainer.replace_hook(hook, Quiet())))
        trainer.train()
        assert trainer.policy.parameter_hash() == expected


def test_training_is_unchanged_when_the_hook_is_disabled_and_enabled(
    hook: Any, expected: str
) -> None:
    class Toggle(TrainerHook):
        order = 0

        def on_epoch_start(self, trainer_state: Any) -> None:
            [trainer.enable_hook, trainer.disable_hook, trainer.enable_hook][trainer_state.epoch](
                hook
            )

    with new_trainer() as trainer:
        trainer.add_hook(hook)
        trainer.add_hook(Toggle())
        trainer.train()
        assert trainer.policy.parameter_hash() == expected


def test_a_hook_serves_a_second_training_when_it_was_closed_by_the_first(hook: Any) -> None:
    with new_trainer() as trainer:
        trainer.add_hook(hook)
        trainer.train()
        trainer.training_config = apply_settings(trainer.training_config, {"total_timesteps": 96})
        assert trainer.train().epoch == 6


def test_closing_is_harmless_when_nothing_ever_happened(hook: Any) -> None:
    trainer = new_trainer()
    trainer.add_hook(hook)
    trainer.cleanup()
    trainer.cleanup()


@pytest.mark.parametrize("event", [event for event in EVENTS if event != "on_checkpoint"])
@pytest.mark.parametrize("name", ["checkpoint", "everything", "odd signatures"])
def test_the_error_names_hook_event_and_step_when_an_event_fails(
    name: str, event: str, tmp_path: Path
) -> None:
    hook = HOOKS[name](tmp_path)
    really_close = getattr(hook, "close", None)

    def fail(trainer_state: Any) -> None:
        if event == "close" and really_close is not None:
            really_close(trainer_state=trainer_state) if name == "everything" else really_close()
        raise ZeroDivisionError("boom")

    setattr(hook, event, fail)
    trainer = new_trainer()
    trainer.add_hook(hook)
    if event == "on_exception":
        _check_note(trainer, type(hook).__name__)
        return
    with pytest.raises(HookError) as caught:
        trainer.train()
    for part in (type(hook).__name__, event, "epoch", "step", "ZeroDivisionError: boom"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    trainer.cleanup()


def _check_note(trainer: Trainer, kind: str) -> None:
    """The failure that is being reported comes out; the hook's own is a note on it."""

    class Stumble(TrainerHook):
        def on_update_end(self) -> None:
            raise KeyError("first")

    trainer.add_hook(Stumble())
    with pytest.raises(HookError, match="KeyError: 'first'") as caught:
        trainer.train()
    assert any(kind in note and "boom" in note for note in caught.value.__notes__)
    trainer.cleanup()


@pytest.mark.parametrize("name", ["everything", "quiet", "metrics"])
def test_training_goes_on_when_the_hook_says_that_errors_only_warn(
    name: str, tmp_path: Path, expected: str
) -> None:
    hook = HOOKS[name](tmp_path)

    def fail(trainer_state: Any) -> None:
        raise ZeroDivisionError("boom")

    hook.on_epoch_start = fail
    hook.on_error = "disable"
    with new_trainer() as trainer:
        trainer.add_hook(hook)
        with pytest.warns(MettaWarning, match="boom; the hook is disabled"):
            trainer.train()
        assert trainer.policy.parameter_hash() == expected


def test_hooks_close_once_in_reverse_when_training_ends_or_fails(tmp_path: Path) -> None:
    for fails in (False, True):
        closed: list[str] = []
        with new_trainer() as trainer:
            for name, make in HOOKS.items():
                folder = tmp_path / f"{name}{fails}"
                folder.mkdir()
                hook = make(folder)
                before = getattr(hook, "close", None)

                def close(name: str = name, before: Any = before, closed: Any = closed) -> None:
                    closed.append(name)
                    if before is not None and name not in ("everything", "odd signatures"):
                        before()

                hook.close = functools.partial(_call, close)
                trainer.add_hook(hook)
            if fails:
                trainer.add_hook(Adder(trainer, lambda _: 1 / 0))
                with pytest.raises(HookError):
                    trainer.train()
            else:
                trainer.train()
            order = [type(hook).__name__ for hook in trainer.hooks if not isinstance(hook, Adder)]
        assert len(closed) == len(HOOKS) == len(order)
        kinds = {name: type(HOOKS[name](tmp_path)).__name__ for name in HOOKS}
        assert [kinds[name] for name in closed] == order[::-1]


def _call(close: Callable[[], None]) -> None:
    close()
