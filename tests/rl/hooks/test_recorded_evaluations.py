"""Replays of a run: when they are recorded, who hears of them, and what a failure costs."""

import time
from pathlib import Path
from typing import Any

import pytest

from metta.agent.factory import make_policy
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, MettaWarning
from metta.loggers.events.log import read_events
from metta.replays.capture import DrawnScene
from metta.replays.file import list_replays, load_replay
from metta.rl.clean_trainer import Trainer
from metta.rl.evaluate.background import BackgroundEvaluation, EvaluationRequest
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.hooks import EvaluationHook
from metta.train.settings import apply_settings
from metta.train.train_config import EvaluationConfig, TrainingConfig

SMALL = {
    "total_timesteps": 80,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "eval_episodes": 2,
    "verbose": False,
    "checkpoint_interval": 1,
    "replay_interval": 2,
    "monitor_seconds": 0,
}


def trained(folder: Path, env: Any = CorridorEnv, **more: Any) -> EvaluationHook:
    replay_dir = more.pop("replay_dir", None)
    config = apply_settings(TrainingConfig(), {**SMALL, **more})
    with Trainer(config, Curriculum(env=env), run_dir=folder, replay_dir=replay_dir) as trainer:
        (hook,) = [one for one in trainer.hooks if isinstance(one, EvaluationHook)]
        trainer.train()
        assert (trainer.state.epoch, trainer.state.eval_epoch) == (5, 5)
        return hook


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [one.payload for one in read_events(folder / "events.jsonl") if one.kind == kind]


@pytest.mark.parametrize(
    ("where", "intervals", "recorded", "scored"),
    [
        ("here", (0, 2), [2, 4, 5], [5]),
        ("here", (1, 5), [5], [1, 2, 3, 4, 5]),
        ("here", (1, 0), [], [1, 2, 3, 4, 5]),
        ("here", (2, 3), [3, 5], [2, 4, 5]),
        ("process", (2, 3), [3, 5], [2, 4, 5]),
    ],
)
def test_replays_come_at_intervals_and_at_the_end_when_training_runs(
    tmp_path: Path,
    where: str,
    intervals: tuple[int, int],
    recorded: list[int],
    scored: list[int],
) -> None:
    names = dict(zip(("evaluate_interval", "replay_interval"), intervals, strict=True))
    hook = trained(tmp_path, where=where, **names)
    found = list_replays(tmp_path / "replays")
    assert [info.epoch for _, info in found] == recorded
    assert sorted(one["epoch"] for one in events_of(tmp_path, "evaluation")) == scored
    told = sorted(events_of(tmp_path, "replay"), key=lambda event: event["epoch"])
    assert [(one["epoch"], one["agent_step"], one["uri"]) for one in told] == [
        (info.epoch, 16 * epoch, path.as_uri())
        for epoch, (path, info) in zip(recorded, found, strict=True)
    ]
    for one, (path, info) in zip(told, found, strict=True):
        assert one["simulation"] == info.simulation == "training/CorridorEnv"
        assert one["policy_uri"] == info.policy_uri
        assert info.policy_uri == (tmp_path / f"checkpoints/epoch_{info.epoch:06d}").as_uri()
        assert load_replay(path).observation("obs", info.num_steps).shape[0] == 1
    assert hook.replays == ({"training/CorridorEnv": str(found[-1][0])} if recorded else {})


def test_the_last_replay_is_not_recorded_twice_when_a_finished_run_is_opened_again(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    trained(tmp_path)
    assert [one["epoch"] for one in events_of(tmp_path, "replay")] == [2, 4, 5]


def test_replays_go_elsewhere_only_when_another_folder_is_given_each_time(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    trained(tmp_path / "run", replay_dir=outside, total_timesteps=80)
    with pytest.raises(ConfigError, match=f"only if you name it: replay_dir='{outside}'"):
        trained(tmp_path / "run", total_timesteps=80)
    config = apply_settings(TrainingConfig(), {**SMALL, "total_timesteps": 96})
    folders = {"run_dir": tmp_path / "run", "replay_dir": outside}
    with Trainer(config, Curriculum(env=CorridorEnv), **folders) as trainer:
        trainer.train()
    assert [info.epoch for _, info in list_replays(tmp_path / "elsewhere")] == [2, 4, 5, 6]
    assert not (tmp_path / "run" / "replays").exists()


@pytest.mark.parametrize("problem", ["recording", "writing"])
def test_a_warning_is_all_when_a_replay_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no display")

    if problem == "recording":
        monkeypatch.setattr(DrawnScene, "begin", fail)
    else:
        monkeypatch.setattr("metta.rl.evaluate.evaluator.save_replay", fail)
    with pytest.warns(
        MettaWarning, match=r"no replay of 'training/CorridorEnv' at epoch.*no display"
    ):
        hook = trained(tmp_path)
    assert len(events_of(tmp_path, "evaluation")) == 1
    assert events_of(tmp_path, "replay") == []
    assert (hook.replays, hook.failures_in_a_row) == ({}, 0)


class Hanging(CorridorEnv):
    """Hangs where it is drawn."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  (as gymnasium has it)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> str:
        time.sleep(600)
        return ""


def test_scores_arrive_when_a_recording_in_the_background_hangs(tmp_path: Path) -> None:
    policy = make_policy(Hanging().observation_space, Hanging().action_space, seed=1)
    evaluator = PolicyEvaluator(Hanging, EvaluationConfig(eval_episodes=1))
    evaluations = BackgroundEvaluation(evaluator, timeout_seconds=60)
    try:
        evaluations.submit(EvaluationRequest(1, 10), policy)
        first = evaluations.collect(wait=True)  # now the process is there
        evaluations.timeout_seconds = 1.0
        evaluations.submit(EvaluationRequest(2, 20, replay_dir=str(tmp_path)), policy)
        scored, recorded = evaluations.collect(wait=True)
    finally:
        evaluations.close()
    assert [one.error for one in (*first, scored, recorded)] == [None] * 3
    assert scored.results is not None
    assert scored.results.to_dict() == (first[0].results or scored.results).to_dict()
    assert recorded.results is None
    assert "eval_timeout_seconds=1" in recorded.recorded.failures["all"]


def test_it_is_told_when_replays_have_no_folder_to_go_to() -> None:
    with pytest.warns(MettaWarning, match="no folder for replays"):
        EvaluationHook(EvaluationConfig(replay_interval=3), Curriculum(env=CorridorEnv))


class Refusing:
    """A run of W&B whose disk is full."""

    id, name, project, entity = "x1", "x", "p", ""

    def log_artifact(self, *_: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")


def test_training_goes_on_when_an_upload_fails(tmp_path: Path) -> None:
    config = EvaluationConfig(eval_episodes=1, replay_interval=9)
    hook = EvaluationHook(config, Curriculum(env=CorridorEnv), replay_dir=tmp_path)
    plain = apply_settings(TrainingConfig(), SMALL)
    trainer = Trainer(plain, Curriculum(env=CorridorEnv))
    trainer.hooks.wandb_run = Refusing()
    trainer.add_hook(hook)
    with pytest.warns(MettaWarning, match=r"replays of epoch 5 could not be uploaded.*No space"):
        trainer.train()
    trainer.cleanup()
    assert hook.latest_replay_uri is None
    assert len(list_replays(tmp_path)) == 1
