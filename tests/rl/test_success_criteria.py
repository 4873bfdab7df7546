"""What the hook architecture was to achieve, criterion by criterion, in seven lists.

Criteria of the kind "tests pass" and "documentation exists" are met by the suite itself.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import metta
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.database import Ingester, StatsReader
from metta.envs.toy import CorridorEnv
from metta.loggers import EventLog, StatsClient, close_wandb_run, open_wandb_run, read_events
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks import CheckpointHook, EvaluationHook, MetricsHook, TrainerHook
from metta.rl.hooks.base import EVENTS
from metta.rl.hooks.registry import HookRegistry
from metta.rl.resume.checkpointer import CheckpointManager
from metta.rl.trainer import MettaTrainer, train
from metta.rl.training_state import TrainerState
from metta.store.checkpoints.files import list_checkpoints
from metta.timing import Stopwatch
from metta.train.settings import apply_settings
from metta.train.train_config import EvaluationConfig, TrainingConfig, WandbConfig
from tests.jobs.workers import working

ROOT = Path(metta.__file__).parents[1]
SMALL = {
    "total_timesteps": 64,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "eval_episodes": 2,
    "verbose": False,
    "checkpoint_interval": 2,
}


def small(**more: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **more})


def trained(*hooks: Any, **services: Any) -> Trainer:
    trainer = Trainer(small(), Curriculum(env=CorridorEnv))
    for name, service in services.items():
        setattr(trainer.hooks, name, service)
    for hook in hooks:
        trainer.add_hook(hook)
    trainer.train()
    trainer.cleanup()
    return trainer


# 1: infrastructure


def test_hook_base_class_exists_with_all_lifecycle_methods() -> None:
    assert set(EVENTS) == {name for name in vars(TrainerHook) if name in EVENTS}


def test_hooks_can_be_registered_and_called_in_sequence() -> None:
    heard: list[int] = []

    class First(TrainerHook):
        order = 1

        def on_epoch_end(self) -> None:
            heard.append(1)

    class Second(TrainerHook):
        def on_epoch_end(self) -> None:
            heard.append(2)

    hooks = HookRegistry(TrainerState())
    hooks.add(Second())
    hooks.add(First())
    hooks.fire("on_epoch_end", losses_stats={}, experience=None)
    assert heard == [1, 2]


# 2: checkpoints


def test_checkpointing_works_through_hook(tmp_path: Path) -> None:
    trained(CheckpointHook(CheckpointManager(tmp_path), 1))
    assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [2, 3, 4]


def test_wandb_artifacts_still_upload_correctly(tmp_path: Path) -> None:
    run = open_wandb_run(WandbConfig(mode="offline"), tmp_path, "run", {})
    hook = CheckpointHook(CheckpointManager(tmp_path / "saved"), 1, 2)
    trained(hook, wandb_run=run)
    close_wandb_run(run)
    assert re.fullmatch(r"wandb://.*policy-\w+:epoch_000004", hook.latest_wandb_uri or "")
    assert list((tmp_path / "wandb").rglob("*.wandb"))


def test_can_resume_from_checkpoints(tmp_path: Path) -> None:
    train(tmp_path, small())
    state = train(tmp_path, small(total_timesteps=96))
    assert (state.epoch, state.agent_step) == (6, 96)


# 3: metrics


def test_wandb_metrics_still_log_correctly(tmp_path: Path) -> None:
    run = open_wandb_run(WandbConfig(mode="offline"), tmp_path, "run", {})
    trained(MetricsHook(run, None, Stopwatch(), verbose=False))
    assert run is not None
    assert run.summary["metric/agent_step"] == 64
    assert "losses/policy_loss" in dict(run.summary)
    close_wandb_run(run)


def test_stats_database_updates_work(tmp_path: Path) -> None:
    train(tmp_path / "first", small(evaluate_interval=1, heartbeat_seconds=0.001))
    events = list(read_events(tmp_path / "first" / "events.jsonl"))
    rows = [event.payload for event in events if event.kind == "metrics"]
    with Ingester(str(tmp_path / "stats.db")) as ingester:
        assert ingester.ingest_folder(tmp_path).num_events == len(events)
        assert ingester.ingest_folder(tmp_path).num_events == 0
    with StatsReader(str(tmp_path / "stats.db")) as reader:
        (run,) = reader.runs()
        assert (run.name, run.outcome, run.epoch, run.agent_step) == ("first", "done", 4, 64)
        assert run.last_heartbeat == [e.time for e in events if e.kind == "heartbeat"][-1]
        curve = reader.metric_curve(run.run, "losses/policy_loss")
        logged = [row["metrics"]["losses/policy_loss"] for row in rows]
        assert [(point.epoch, point.value) for point in curve] == list(enumerate(logged, 1))
        episodes = [
            len(e.payload["stats"]["episode_return"]) for e in events if e.kind == "episodes"
        ]
        assert len(reader.episodes(run.run)) == sum(episodes) > 0
        saved = [e.payload["uri"] for e in events if e.kind == "policy"]
        assert [policy.uri for policy in reader.policies()] == saved
        scores = [
            e.payload["scores"]["simulation_scores"] for e in events if e.kind == "evaluation"
        ]
        found = [(one.simulation, one.score) for one in reader.simulation_scores()]
        assert found == [item for each in scores for item in each.items()]
        assert len(found) >= 4


def test_progress_logging_displays(capsys: pytest.CaptureFixture[str]) -> None:
    trained(MetricsHook(verbose=True, total_timesteps=64))
    assert re.search(r"64 / 64 steps .* steps/s", capsys.readouterr().out)


def test_monitoring_data_collected(tmp_path: Path) -> None:
    train(tmp_path, small(monitor_seconds=0.01, total_timesteps=160))
    rows = [
        e.payload["metrics"] for e in read_events(tmp_path / "events.jsonl") if e.kind == "metrics"
    ]
    found = {key for row in rows for key in row if key.startswith("monitor/")}
    assert len(found) >= 3


def test_heartbeats_recorded(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    trained(MetricsHook(None, StatsClient(log), Stopwatch(), verbose=False))
    log.close()
    assert "heartbeat" in {event.kind for event in read_events(tmp_path / "events.jsonl")}


# 4: evaluation


def test_local_evaluations_work() -> None:
    hook = EvaluationHook(EvaluationConfig(eval_episodes=2), Curriculum(env=CorridorEnv))
    trained(hook)
    assert hook.get_eval_scores().avg_category_score is not None


def test_remote_evaluations_work(tmp_path: Path) -> None:
    scores = {}
    for where in ("here", "queue"):
        run = tmp_path / where
        with (
            working(tmp_path / "stats.db"),
            Trainer(
                small(evaluate_interval=1, **{"evaluation.where": where}), run_dir=run
            ) as trainer,
        ):
            trainer.train()
            assert trainer.state.eval_epoch == trainer.state.epoch == 4
        events = [e.payload for e in read_events(run / "events.jsonl") if e.kind == "evaluation"]
        scores[where] = [(one["epoch"], one["scores"]["episodes"]) for one in events]
    assert scores["queue"] == scores["here"]
    assert [epoch for epoch, _ in scores["queue"]] == [1, 2, 3, 4]


def test_evaluation_scores_feed_into_metrics(tmp_path: Path) -> None:
    train(tmp_path, small(evaluate_interval=1))
    rows = [
        e.payload["metrics"] for e in read_events(tmp_path / "events.jsonl") if e.kind == "metrics"
    ]
    assert all("eval_training/score" in row for row in rows)


def test_replay_uploads_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_wandb_run(WandbConfig(mode="offline"), tmp_path, "run", {})
    assert run is not None
    logged: list[tuple[Any, list[str]]] = []
    log_artifact = run.log_artifact

    def log(artifact: Any, *, aliases: list[str]) -> Any:
        logged.append((artifact, aliases))
        return log_artifact(artifact, aliases=aliases)

    monkeypatch.setattr(run, "log_artifact", log)
    config = EvaluationConfig(eval_episodes=2, replay_interval=2)
    curriculum = Curriculum(env=CorridorEnv)
    hook = EvaluationHook(config, curriculum, replay_dir=tmp_path / "replays")
    trained(hook, wandb_run=run)
    close_wandb_run(run)
    assert re.fullmatch(r"wandb://.*replay-\w+:epoch_000004", hook.latest_replay_uri or "")
    assert [(one.type, aliases) for one, aliases in logged] == [
        ("replay", ["latest", "epoch_000002"]),
        ("replay", ["latest", "epoch_000004"]),
    ]
    files = sorted(path.name for path in (tmp_path / "replays").iterdir())
    assert [list(one.manifest.entries) for one, _ in logged] == [[name] for name in files]
    assert list((tmp_path / "wandb").rglob("*.wandb"))


# 5: the clean trainer


def test_trainer_only_imports_training_modules_and_no_direct_wandb_stats_checkpoint_code() -> None:
    source = (ROOT / "metta/rl/components/trainer.py").read_text()
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not [
        name for name in imported if name.startswith(("metta.store", "metta.loggers", "wandb"))
    ]
    for call in ("wandb.", "save_policy(", "save_trainer_state(", ".log("):
        assert call not in source


def test_training_loop_works_with_hooks() -> None:
    class Seen(TrainerHook):
        policy: Policy

        def on_update_end(self, policy: Policy, losses_stats: dict[str, float]) -> None:
            self.policy, self.losses = policy, losses_stats

    seen = Seen()
    trainer = trained(seen)
    assert seen.policy is trainer.policy
    assert seen.losses["optimizer_steps"] == 1


# 6: integration


def test_can_toggle_between_old_and_new_trainer() -> None:
    """There is one trainer behind both faces, so there is nothing left to toggle."""
    with pytest.warns(DeprecationWarning, match="MettaTrainer"):
        old = MettaTrainer(small())
    assert type(old.trainer) is Trainer
    old.train()
    new = Trainer(small())
    new.train()
    new.cleanup()
    assert old.trainer.policy.parameter_hash() == new.policy.parameter_hash()


def test_all_existing_functionality_preserved(tmp_path: Path) -> None:
    state = train(tmp_path, small(tensorboard=True))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.yaml", "provenance.json", "events.jsonl", "metrics.csv"} <= names
    assert {"checkpoints", "tensorboard"} <= names
    assert state.policies.latest_saved_policy_record is not None
    assert json.loads((tmp_path / "provenance.json").read_text())["settings"]


def test_performance_comparable_or_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hooks add no pass through the network; seconds are measured by the overhead benchmark."""
    calls: list[int] = []
    forward = Policy.forward

    def counted(self: Policy, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Policy, "forward", counted)
    counts = []
    for run_dir in (None, tmp_path):
        calls.clear()
        trainer = Trainer(small(eval_episodes=0), run_dir=run_dir)
        trainer.train()
        trainer.cleanup()
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


# 7: what remains


def test_old_trainer_code_removed() -> None:
    """One loop: no interface and no manager repeats epochs by itself."""
    folder = ROOT / "metta" / "rl"
    loops = [
        path.name
        for path in sorted([*folder.glob("*.py"), *(folder / "components").glob("*.py")])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.While)
        and path.name != "process_group.py"  # which repeats heartbeats
    ]
    assert loops == ["loop.py"]


def test_all_examples_use_new_system() -> None:
    examples = list((ROOT / "examples").glob("*.py"))
    assert examples
    for example in examples:
        assert "MettaTrainer" not in example.read_text()
