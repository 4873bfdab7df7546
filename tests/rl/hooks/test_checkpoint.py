"""The checkpoint hook: when runs are saved, and how they are taken up again."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metta.envs.toy import CorridorEnv
from metta.errors import CheckpointError, HookError, MettaWarning, NonFiniteError
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.checkpoint import CheckpointHook as Hook
from metta.rl.hooks.registry import HookRegistry
from metta.rl.loop import save_requested
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.checkpointer import CheckpointManager
from metta.rl.resume.run_saver import RunSaver
from metta.rl.training_state import crossed
from metta.sim.scores import EvalRewardSummary
from metta.stateful import digest_of
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint


def BackgroundHook(  # noqa: N802  # stands for the class
    manager: CheckpointManager | None, interval: int, wandb_interval: int = 0, **options: Any
) -> Hook:
    """A hook with a service of its own."""
    saving = None if manager is None else RunSaver(manager, interval, **options)
    return Hook(manager, interval, wandb_interval, saving=saving)


CheckpointHook = functools.partial(BackgroundHook, background=False)
SETTINGS = {"num_envs": 2, "horizon": 8, "hidden_size": 8, "update_epochs": 1}


class Run:
    """A trainer whose events are fired by hand."""

    def __init__(self, *hooks: Any, wandb_run: Any = None, **settings: Any) -> None:
        self.trainer = PPOTrainer(None, CorridorEnv, **{**SETTINGS, **settings})
        trainer = self.trainer
        self.state = trainer.state
        self.hooks = HookRegistry(
            trainer.state,
            policy=trainer.policy,
            optimizer=trainer.optimizer,
            config=trainer.config,
            registry=trainer.registry,
            wandb_run=wandb_run,
        )
        for hook in hooks:
            self.hooks.add(hook)

    def start(self) -> list[Any]:
        return self.hooks.fire("on_training_start")

    def epochs(self, number: int = 1) -> None:
        for _ in range(number):
            data = self.trainer.collect_rollouts()
            losses = self.trainer.learn(data)
            self.state.agent_step += int(data["valid"].sum())
            self.state.epoch += 1
            self.hooks.fire("on_epoch_end", losses_stats=losses, experience=None)
            self.commit()

    def end(self) -> None:
        self.hooks.fire("on_training_end", reason="done")
        self.commit()

    def commit(self) -> None:
        save_requested(self.state, self.hooks)


@contextlib.contextmanager
def run_of(*hooks: Any, **options: Any) -> Iterator[Run]:
    run = Run(*hooks, **options)
    with run.trainer:
        yield run


class Evaluate(TrainerHook):
    """Scores some epochs."""

    order = 20

    def __init__(self, scores: dict[int, float]) -> None:
        self.scores = scores

    def on_epoch_end(self, trainer_state: Any) -> None:
        if trainer_state.epoch in self.scores:
            score = self.scores[trainer_state.epoch]
            trainer_state.record_scores(EvalRewardSummary({"toy/corridor": score}))

    on_training_end = on_epoch_end


class Report(TrainerHook):
    """Forgets what it has reported, as a metrics hook does."""

    order = 90

    def on_epoch_end(self, trainer_state: Any) -> None:
        trainer_state.stats.clear_rollout_stats(trainer_state.epoch)


class FakeWandbRun:
    id, entity, project = "abc", "me", "tests"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.aliases: list[list[str]] = []

    def log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        if self.error is not None:
            raise self.error
        assert set(artifact.manifest.entries) == {"policy.safetensors"}
        self.aliases.append(aliases)


@pytest.fixture
def wandb_run(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that takes artifacts, whose files wandb keeps in a temporary folder."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path_factory.mktemp("wandb")))
    return FakeWandbRun()


def saved(folder: Path) -> list[int]:
    return [entry.epoch for entry in list_checkpoints(folder)]


def manager_of(folder: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(folder, **{"keep_last": 99, **options})


@pytest.mark.parametrize(
    ("previous", "now", "interval", "expected"),
    [(0, 1, 1, True), (4, 5, 5, True), (5, 6, 5, False), (3, 12, 5, True), (0, 9, 0, False),
     (5, 5, 5, False), (0, 0, 1, False)],
)  # fmt: skip
def test_a_multiple_is_seen_when_it_lies_in_the_interval(
    previous: int, now: int, interval: int, expected: bool
) -> None:
    assert crossed(previous, now, interval) is expected


def test_checkpoints_are_made_at_intervals_and_at_the_end_when_a_run_trains(tmp_path: Path) -> None:
    hook = CheckpointHook(manager_of(tmp_path), 2)
    with run_of(hook) as run:
        assert run.start() == [None]
        run.epochs(5)
        assert saved(tmp_path) == [2, 4]
        assert hook.latest_saved_epoch == 4
        run.end()
        assert saved(tmp_path) == [2, 4, 5]
        run.end()  # this epoch is saved already
        assert saved(tmp_path) == [2, 4, 5]
        uri = (tmp_path / "epoch_000005").as_uri()
        assert run.state.shared["latest_policy_uri"] == hook.saving.policy_uri_of(5) == uri
        tracked = run.state.policies
        assert tracked.initial_policy_record is not None
        assert tracked.latest_saved_policy_record is not None
        assert tracked.initial_policy_record.epoch == 2
        assert tracked.latest_saved_policy_record.uri == uri


def test_a_multiple_is_not_missed_when_epochs_jump(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 10)) as run:
        run.start()
        run.state.epoch = 12
        run.epochs()
        assert saved(tmp_path) == [13]


def test_every_component_is_saved_when_a_checkpoint_is_made(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as run:
        run.start()
        run.epochs()
        found = read_checkpoint(tmp_path / "epoch_000001")
        assert set(found.snapshot) == set(run.trainer.registry.names())
        assert {"stats_tracker", "policy_tracker", "trainer_state"} <= set(found.snapshot)


@pytest.mark.parametrize("kind", [{}, {"core": "lstm"}, {"normalize_observations": True}])
def test_the_whole_run_returns_when_a_new_one_resumes(tmp_path: Path, kind: dict[str, Any]) -> None:
    first = CheckpointHook(manager_of(tmp_path), 2), Evaluate({2: 5.0}), Report()
    with run_of(*first, **kind) as run:
        run.start()
        run.epochs(2)
        expected = run.trainer.digest()
    hook = CheckpointHook(manager_of(tmp_path), 2)
    with run_of(hook, **kind) as other:
        assert other.trainer.digest() != expected
        assert hook.saving.restore(other.trainer.registry)
        assert other.start() == [None]
        assert other.trainer.digest() == expected
        assert (other.state.epoch, hook.latest_saved_epoch) == (2, 2)
        assert other.state.eval_scores.simulation_scores == {"toy/corridor": 5.0}
        uri = (tmp_path / "epoch_000002").as_uri()
        assert other.state.shared["latest_policy_uri"] == hook.saving.policy_uri_of(2) == uri
        other.epochs(2)
        assert saved(tmp_path) == [2, 4]


def test_a_run_begins_anew_when_nobody_restores_it_or_there_is_nothing(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as run:
        run.start()
        run.epochs()
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as other:
        before = other.trainer.digest()
        assert other.start() == [None]
        assert other.trainer.digest() == before
        assert not RunSaver(manager_of(tmp_path / "none"), 1).restore(other.trainer.registry)
        assert other.trainer.digest() == before


def test_nothing_is_loaded_when_the_run_is_under_way(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as run:
        run.start()
        run.epochs()
    with run_of() as other:
        other.start()
        other.epochs(2)
        other.hooks.add(CheckpointHook(manager_of(tmp_path), 3))
        before = other.trainer.digest()
        assert other.start() == [None]
        assert other.trainer.digest() == before
        other.epochs()
    assert saved(tmp_path) == [1, 3]


def test_a_hook_saves_at_its_multiples_when_it_never_heard_of_the_start(tmp_path: Path) -> None:
    with run_of() as run:
        run.epochs(2)
        run.hooks.add(CheckpointHook(manager_of(tmp_path), 2))
        run.epochs(2)
    assert saved(tmp_path) == [4]


def test_the_score_is_that_of_the_saved_policy_when_some_epochs_are_evaluated(
    tmp_path: Path,
) -> None:
    hooks = CheckpointHook(manager_of(tmp_path), 1), Evaluate({1: 3.0, 3: 3.0, 4: 7.0})
    with run_of(*hooks) as run:
        run.start()
        run.epochs(4)
    scores = [entry.score for entry in list_checkpoints(tmp_path)]
    assert scores == [3.0, None, 3.0, 7.0]  # an old score is not that of a new policy
    newest = read_checkpoint(tmp_path / "epoch_000004")
    assert newest.metadata["simulation_scores"] == {"toy/corridor": 7.0}


def test_the_final_score_is_saved_when_the_run_is_evaluated_at_its_end(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 10), Evaluate({3: 4.0})) as run:
        run.start()
        run.epochs(2)
        run.state.epoch = 3
        run.end()
    assert [(entry.epoch, entry.score) for entry in list_checkpoints(tmp_path)] == [(3, 4.0)]


def test_the_place_of_a_policy_is_known_before_it_is_written(tmp_path: Path) -> None:
    class Look(TrainerHook):
        def on_epoch_end(self, trainer_state: Any, checkpoint_hook: Any) -> None:
            self.uri = checkpoint_hook.saving.policy_uri_of(trainer_state.epoch)
            assert not any(tmp_path.iterdir())

    look = Look()
    with run_of(CheckpointHook(manager_of(tmp_path), 1), look) as run:
        run.start()
        run.epochs()
    assert look.uri == (tmp_path / "epoch_000001").as_uri()
    assert saved(tmp_path) == [1]


def test_the_run_is_copied_once_when_a_checkpoint_is_made(tmp_path: Path) -> None:
    hook = CheckpointHook(manager_of(tmp_path), 1, rescue_share=0.0)
    hooks = hook, Evaluate({1: 3.0, 2: 4.0, 3: 5.0}), Report()
    with run_of(*hooks) as run:
        run.start()
        taken: list[str] = []
        for name in set(run.trainer.registry.names()) - {"policy"}:  # actors look at it too
            part = run.trainer.registry.get(name)
            count = functools.partial(_counted, part.state_dict, taken, name)
            with contextlib.suppress(AttributeError):
                part.state_dict = count
        run.epochs(3)
    assert {name: taken.count(name) for name in taken} == dict.fromkeys(taken, 3)
    assert {"trainer_state", "stats_tracker", "policy_tracker"} <= set(taken)


def _counted(state_dict: Any, taken: list[str], name: str, *args: Any, **more: Any) -> Any:
    taken.append(name)
    return state_dict(*args, **more)


@pytest.mark.parametrize("intervals", [(0, 0), (0, 1)])
def test_nothing_is_saved_when_every_interval_is_off_or_there_is_nowhere_to_upload(
    tmp_path: Path, intervals: tuple[int, int]
) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), *intervals)) as run:
        run.start()
        run.epochs(2)
        run.end()
    assert not any(tmp_path.iterdir())


def test_nothing_happens_when_there_is_no_manager() -> None:
    hook = CheckpointHook(None, 1, 1)
    with run_of(hook, wandb_run=FakeWandbRun()) as run:
        assert run.start() == [None]
        run.epochs(2)
        run.end()
        run.hooks.fire_exception(ValueError("no"))
        assert run.state.checkpoint_requests == []
        assert (hook.latest_saved_epoch, hook.saving) == (None, None)


def test_policy_and_optimizer_are_saved_when_there_is_no_registry(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as run:
        run.hooks.registry = None
        run.epochs()
        run.end()
    assert set(read_checkpoint(tmp_path / "epoch_000001").snapshot) == {"policy", "optimizer"}


# When saving fails.


class Failing(CheckpointManager):
    """Fails a number of times."""

    failures = 0
    error: Exception = CheckpointError("disk full")

    def commit(self, pending: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise self.error
        return super().commit(pending)


def test_the_checkpoint_is_written_once_when_the_first_attempts_fail(tmp_path: Path) -> None:
    manager = Failing(tmp_path)
    manager.failures = 2
    hook = CheckpointHook(manager, 1, max_retries=2, retry_seconds=0)
    with run_of(hook) as run:
        run.start()
        with pytest.warns(MettaWarning, match="tried again: disk full"):
            run.epochs()
    assert saved(tmp_path) == [1]


@pytest.mark.parametrize("hook_class", [CheckpointHook, BackgroundHook])
def test_training_goes_on_and_recovers_when_some_saves_fail(
    tmp_path: Path, hook_class: Any
) -> None:
    manager = Failing(tmp_path)
    manager.failures = 4
    hook = hook_class(manager, 1, max_retries=1, retry_seconds=0)
    with run_of(hook) as run:
        run.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.epochs(3)
            run.end()
        told = [str(warning.message) for warning in caught]
        assert any("2 failed saves in a row, 3 stop training" in text for text in told)
        assert (saved(tmp_path), hook.saving.failures_in_a_row) == ([3], 0)


def test_the_failure_is_raised_when_the_last_save_fails(tmp_path: Path) -> None:
    manager = Failing(tmp_path)
    hook = BackgroundHook(manager, 10, max_retries=0)
    with run_of(hook) as run:
        run.start()
        run.epochs(2)
        manager.failures = 1
        with pytest.raises(CheckpointError, match="disk full"):
            run.end()


def test_training_stops_when_saving_fails_for_good(tmp_path: Path) -> None:
    manager = Failing(tmp_path)
    manager.failures = 2
    hook = CheckpointHook(manager, 1, max_retries=1, retry_seconds=0, max_failures=1)
    with run_of(hook) as run:
        run.start()
        with (
            pytest.warns(MettaWarning, match="tried again"),
            pytest.raises(CheckpointError) as raised,
        ):
            run.epochs()
        assert "disk full" in str(raised.value)
        assert hook.latest_saved_epoch is None
        assert saved(tmp_path) == []
        run.hooks.fire_exception(raised.value)  # space came back: the epoch is not lost
        assert saved(tmp_path) == [1]


def test_an_error_of_another_kind_is_not_tried_again_when_it_is_raised(tmp_path: Path) -> None:
    manager = Failing(tmp_path)
    manager.failures, manager.error = 1, RuntimeError("a mistake")
    with run_of(CheckpointHook(manager, 1, retry_seconds=0)) as run:
        run.start()
        with pytest.raises(RuntimeError) as raised:
            run.epochs()
    assert raised.value is manager.error
    assert manager.failures == 0
    assert saved(tmp_path) == []


def test_the_last_whole_epoch_is_saved_when_a_later_hook_fails(tmp_path: Path) -> None:
    class Fail(TrainerHook):
        def on_epoch_end(self) -> None:
            raise ValueError("no")

    with run_of(CheckpointHook(manager_of(tmp_path), 1), Fail()) as run:
        run.start()
        with pytest.raises(HookError) as raised:
            run.epochs()
        assert saved(tmp_path) == []
        run.hooks.fire_exception(raised.value)
        assert saved(tmp_path) == [1]


def test_a_half_made_update_is_not_saved_when_training_fails(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 2)) as run:
        run.start()
        run.epochs(2)
        run.trainer.learn(run.trainer.collect_rollouts())
        run.hooks.fire_exception(KeyboardInterrupt())
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000002"]


def test_an_old_snapshot_is_forgotten_when_training_begins_again(tmp_path: Path) -> None:
    hook = CheckpointHook(manager_of(tmp_path), 1)
    with run_of(hook) as run:
        run.start()
        run.state.epoch = 1
        run.hooks.fire("on_epoch_end", losses_stats={}, experience=None)
        run.state.checkpoint_requests.clear()
        run.start()
        run.hooks.fire_exception(ValueError("no"))
    assert saved(tmp_path) == []


def test_the_epoch_before_is_saved_when_training_fails_between_checkpoints(tmp_path: Path) -> None:
    with run_of(BackgroundHook(manager_of(tmp_path), 10, rescue_share=1.0)) as run:
        run.start()
        run.epochs(3)
        run.hooks.fire("on_epoch_start")
        expected = run.trainer.registry.digests()
        run.trainer.learn(run.trainer.collect_rollouts())  # half of an epoch, then
        run.hooks.fire_exception(ValueError("no"))
    snapshot = read_checkpoint(tmp_path / "epoch_000003").snapshot
    assert {name: digest_of(part["state"]) for name, part in snapshot.items()} == expected


def test_the_run_is_kept_only_as_often_as_its_share_of_time_allows(tmp_path: Path) -> None:
    class Counting(CheckpointManager):
        taken = 0

        def snapshot(self, *args: Any, **options: Any) -> Any:
            self.taken += 1
            return super().snapshot(*args, **options)

    counts = []
    for share in (0.0, 1e-9, 1.0):
        manager = Counting(tmp_path / str(share))
        with run_of(BackgroundHook(manager, 100, rescue_share=share)) as run:
            run.start()
            for _ in range(4):
                run.hooks.fire("on_epoch_start")
                run.epochs()
        counts.append(manager.taken)
    assert counts == [0, 1, 4]


def test_an_older_snapshot_is_written_when_the_newest_cannot_be(tmp_path: Path) -> None:
    class Refusing(CheckpointManager):
        def commit(self, pending: Any) -> Any:
            if pending.epoch == 3:
                raise NonFiniteError("epoch 3 is not saved")
            return super().commit(pending)

    hook = BackgroundHook(Refusing(tmp_path), 3, rescue_share=1.0)
    with run_of(hook) as run:
        run.start()
        run.epochs(2)
        run.hooks.fire("on_epoch_start")
        run.state.epoch = 3
        run.hooks.fire("on_epoch_end", losses_stats={}, experience=None)  # taken, not handed over
        run.hooks.fire_exception(ValueError("no"))
    assert saved(tmp_path) == [2]


def test_nothing_is_kept_when_the_learner_is_not_finite(tmp_path: Path) -> None:
    hook = BackgroundHook(manager_of(tmp_path), 5, rescue_share=1.0)
    with run_of(hook) as run:
        run.start()
        run.epochs(2)
        run.hooks.fire("on_epoch_start")
        run.trainer.learn(run.trainer.collect_rollouts())
        run.state.epoch += 1
        run.trainer.optimizer.exp_avg_sq[0].fill_(float("inf"))
        with pytest.raises(HookError, match=r"exp_avg_sq.*holds NaN or infinity") as raised:
            run.hooks.fire("on_epoch_start")
        run.hooks.fire_exception(raised.value)
    assert saved(tmp_path) == [2]


def test_a_second_run_is_saved_too_when_one_hook_serves_both(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    hook = CheckpointHook(manager, 10)
    for name in ("epoch_000002", "epoch_000002.2"):
        with run_of(hook) as run:
            run.start()
            run.epochs(2)
            run.end()
        assert list_checkpoints(tmp_path)[-1].path.name == name


def test_a_run_without_a_registry_begins_when_the_hook_has_a_manager(tmp_path: Path) -> None:
    with run_of(CheckpointHook(manager_of(tmp_path), 1)) as run:
        run.hooks.registry = None
        assert run.start() == [None]
        run.epochs()
    assert saved(tmp_path) == [1]


# Saving in the background.


class Slow(CheckpointManager):
    """Writes when it is allowed to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = threading.Event()

    def commit(self, pending: Any) -> Any:
        assert self.gate.wait(30)
        return super().commit(pending)


def test_training_goes_on_when_a_save_takes_its_time(tmp_path: Path) -> None:
    manager = Slow(tmp_path)
    hook = BackgroundHook(manager, 2)
    with run_of(hook) as run:
        run.start()
        run.epochs(3)  # one more than the one that is being saved
        assert (saved(tmp_path), hook.latest_saved_epoch) == ([], None)
        uri = (tmp_path / "epoch_000002").as_uri()
        assert hook.saving.policy_uri_of(2) == uri
        manager.gate.set()
        run.end()
        assert saved(tmp_path) == [2, 3]
        initial = run.state.policies.initial_policy_record
        assert initial is not None
        assert initial.epoch == 2


def test_the_save_under_way_is_waited_for_when_the_hook_is_closed(tmp_path: Path) -> None:
    manager = Slow(tmp_path)
    with run_of(BackgroundHook(manager, 1)) as run:
        run.start()
        run.epochs()
        threading.Timer(0.1, manager.gate.set).start()
        run.hooks.close()
        assert saved(tmp_path) == [1]


def test_the_newer_snapshot_stays_when_an_older_one_cannot_be_written(tmp_path: Path) -> None:
    class Full(Slow):
        def commit(self, pending: Any) -> Any:
            if pending.epoch == 10:
                assert self.gate.wait(30)
                raise CheckpointError("disk full")
            self.gate.set()
            return super().commit(pending)

    manager = Full(tmp_path)
    hook = BackgroundHook(manager, 10, rescue_share=1.0, max_retries=0)
    with run_of(hook) as run:
        run.start()
        run.epochs(11)
        run.hooks.fire("on_epoch_start")  # keeps epoch 11
        manager.gate.set()
        hook.wait_for_save()
        with pytest.warns(MettaWarning, match="1 failed saves in a row"):
            run.hooks.fire("on_epoch_start")
        run.hooks.fire_exception(ValueError("no"))
    assert saved(tmp_path) == [11]


# Weights & Biases.


def test_policies_are_uploaded_at_their_own_interval_and_at_the_end(
    tmp_path: Path, wandb_run: FakeWandbRun
) -> None:
    hook = CheckpointHook(manager_of(tmp_path), 2, 3)
    with run_of(hook, wandb_run=wandb_run) as run:
        run.start()
        run.epochs(4)
        assert saved(tmp_path) == [2, 3, 4]  # what is uploaded is saved
        assert wandb_run.aliases == [["latest", "epoch_000003"]]
        run.end()
        assert saved(tmp_path) == [2, 3, 4]
        assert wandb_run.aliases[1:] == [["latest", "epoch_000004"]]
        uri = "wandb://me/tests/policy-abc:epoch_000004"
        assert hook.latest_wandb_uri == run.state.shared["latest_wandb_uri"] == uri


def test_training_goes_on_with_a_warning_when_an_upload_fails(
    tmp_path: Path, wandb_run: FakeWandbRun
) -> None:
    wandb_run.error = OSError("no network")
    hook = CheckpointHook(manager_of(tmp_path), 1, 1)
    with run_of(hook, wandb_run=wandb_run) as run:
        run.start()
        with pytest.warns(MettaWarning, match="no network; training continues"):
            run.epochs()
        assert saved(tmp_path) == [1]
        assert hook.latest_wandb_uri is None


def test_the_hook_comes_first_and_is_known_when_it_is_registered(tmp_path: Path) -> None:
    hook = CheckpointHook(manager_of(tmp_path), 1)
    with run_of(Evaluate({}), hook) as run:
        assert next(iter(run.hooks)) is hook
        assert run.hooks.checkpoint_hook is hook
