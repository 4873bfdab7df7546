"""`Trainer`: set-up, training and clean-up of a run, and what comes between."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from faults.zygote import Zygote
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError, HookError, RunLockedError, StateError
from metta.loggers import read_events
from metta.rl.components import Trainer
from metta.rl.hooks.base import EVENTS, TrainerHook
from metta.rl.trainer import train
from metta.stateful import NamedState
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint
from metta.store.policy_store import PolicyStore
from metta.train.layers import resolve
from metta.train.settings import apply_settings
from metta.train.train_config import TrainerConfig, TrainingConfig

SMALL = {
    "total_timesteps": 64,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 2,
    "hidden_size": 8,
    "verbose": False,
    "eval_episodes": 2,
    "monitor_seconds": 0,
    "recipe": "none",
}


def small(**more: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **more})


class InterruptingEnv(CorridorEnv):
    """Presses Ctrl-C at its 12th step, in the middle of the second rollout."""

    steps_left = 12

    def step(self, action: Any) -> Any:
        type(self).steps_left -= 1
        if type(self).steps_left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


@pytest.fixture
def ctrl_c():
    """The suite may run in the background, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_run_leaves_everything_behind_when_it_is_done(tmp_path: Path) -> None:
    trainer = Trainer(
        trainer_config=small().trainer,
        run_dir=tmp_path / "run",
        run_name="mine",
        checkpoint_dir=tmp_path / "saved",
        replay_dir=tmp_path / "replays",
        stats_dir=tmp_path / "stats",
        wandb_config=None,
        global_config=small(),
    )
    try:
        trainer.setup(vectorization="multiprocessing")
        state = trainer.train()
    finally:
        trainer.cleanup()
    assert (state.agent_step, state.epoch) == (64, 4)
    assert TrainingConfig.from_yaml(tmp_path / "run" / "config.yaml") == small()
    origins = json.loads((tmp_path / "run" / "provenance.json").read_text())["settings"]
    assert origins["trainer.total_timesteps"]["value"] == 64
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert events[0].payload["name"] == "mine"
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1], kinds.count("metrics")) == ("run_start", "run_end", 5)
    assert "evaluation" in kinds
    assert [entry.epoch for entry in list_checkpoints(tmp_path / "saved")] == [4]
    assert state.eval_scores.avg_category_score is not None


def test_training_sets_up_when_nobody_did() -> None:
    trainer = Trainer(small())
    state = trainer.train()
    assert (state.agent_step, trainer.components.state) == (64, state)
    trainer.cleanup()
    trainer.cleanup()


def test_set_up_happens_once_when_it_is_called_twice() -> None:
    with Trainer(small()) as trainer:
        parts = trainer.components
        trainer.setup()
        assert trainer.components is parts


def test_nothing_more_is_trained_when_the_goal_is_reached() -> None:
    with Trainer(small()) as trainer:
        trainer.train()
        before = trainer.policy.parameter_hash()
        assert trainer.train().agent_step == 64
        assert trainer.policy.parameter_hash() == before


def test_settings_may_be_a_mapping_when_they_come_from_elsewhere() -> None:
    trainer = Trainer(
        {"total_timesteps": 32, "clip_range": 0.1}, global_config={"agent": {"core": "gru"}}
    )
    assert (trainer.config.total_timesteps, trainer.config.ppo.clip_coef) == (32, 0.1)
    assert trainer.training_config.agent.core == "gru"
    with pytest.raises(ConfigError, match="trainer_config is a int"):
        Trainer(3)


def test_batch_sizes_are_chosen_when_auto_batch_asks_for_it() -> None:
    with Trainer(small(auto_batch=True, horizon=16)) as trainer:
        assert trainer.config.rollout.horizon == 16
        assert trainer.environment_manager.num_agents == trainer.config.rollout.num_envs


def test_chosen_sizes_stay_when_they_equal_the_default_and_auto_batch_is_on(tmp_path: Path) -> None:
    resolved = resolve("cartpole", [], ["auto_batch=true", "num_envs=8", "verbose=false"])
    trainer = Trainer(resolved.config, run_dir=tmp_path, provenance=resolved.provenance())
    with trainer:
        assert trainer.batch_plan is not None
        assert trainer.environment_manager.num_agents == 8


def test_options_of_a_run_are_refused_when_there_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_dir, run_name belong to a run directory"):
        Trainer(small(), checkpoint_dir=tmp_path, run_name="x")


def test_the_second_trainer_is_refused_when_the_first_is_at_work(
    zygote: Zygote, tmp_path: Path
) -> None:
    run, ready, over = (tmp_path / name for name in ("run", "ready", "over"))
    first = zygote.start(
        "tests.children:hold_a_run", run=str(run), ready=str(ready), over=str(over)
    )
    while not ready.exists():
        with pytest.raises(TimeoutError):
            first.wait(0.01)
    second = Trainer(small(), run_dir=run)
    with pytest.raises(RunLockedError, match=rf"process {first.pid} on .*, since 20\d\d-"):
        second.setup()
    second.cleanup()
    over.touch()
    assert first.wait() == 0
    with Trainer(small(), run_dir=run) as third:
        third.train()


def test_the_run_is_free_again_when_setting_up_failed(tmp_path: Path) -> None:
    with pytest.raises(EnvError):
        Trainer(small(env="CartPole-v1", env_kwargs={"wrong": 1}), run_dir=tmp_path).setup()
    with Trainer(small(), run_dir=tmp_path):
        pass


def test_training_goes_on_when_the_run_directory_has_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, small())
    state = train(tmp_path, small(total_timesteps=128))
    assert (state.agent_step, state.epoch) == (128, 8)
    epochs = [
        e.payload["epoch"] for e in read_events(tmp_path / "events.jsonl") if e.kind == "metrics"
    ]
    assert sorted(set(epochs)) == list(range(1, 9))


class Press(TrainerHook):
    """Presses Ctrl-C in one event of the second epoch."""

    def __init__(self, event: str, order: int = 50) -> None:
        self.order, self.pressed = order, False
        setattr(self, event, self.press)

    def press(self, trainer_state: Any) -> None:
        if trainer_state.epoch >= 1 and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


PHASES = [
    e for e in EVENTS if e not in ("on_training_start", "on_exception", "close", "on_training_end")
]


def check_final_checkpoint(folder: Path, trainer: Trainer) -> None:
    newest = list_checkpoints(folder / "checkpoints")[-1]
    assert newest.epoch == trainer.state.epoch < 4
    checkpoint = read_checkpoint(newest.path)
    assert checkpoint.snapshot["trainer_state"]["state"]["agent_step"] == trainer.state.agent_step
    env = (
        gymnasium.make("CartPole-v1")
        if trainer.curriculum.task.env == "CartPole-v1"
        else CorridorEnv()
    )
    loaded = PolicyStore(folder / "checkpoints").load(str(newest.path), env).policy
    assert loaded.parameter_hash() == trainer.policy.parameter_hash()
    assert [e.kind for e in read_events(folder / "events.jsonl")][-1] == "run_end"


@pytest.mark.parametrize("event", PHASES)
def test_the_final_checkpoint_is_complete_when_ctrl_c_comes_in_an_event(
    event: str, tmp_path: Path, ctrl_c: None
) -> None:
    trainer = Trainer(small(checkpoint_interval=2), run_dir=tmp_path)
    trainer.add_hook(Press(event))
    state = trainer.train()
    trainer.cleanup()
    assert state.stop_reason == "SIGINT was received"
    assert trainer.stop_signal == signal.SIGINT
    check_final_checkpoint(tmp_path, trainer)


def test_the_final_checkpoint_is_complete_when_ctrl_c_comes_while_collecting(
    tmp_path: Path, ctrl_c: None
) -> None:
    InterruptingEnv.steps_left = 12
    # boundary: it must not press Ctrl-C while it is tried out
    config = small(env_restore="boundary")
    trainer = Trainer(config, Curriculum(env=InterruptingEnv), run_dir=tmp_path)
    trainer.train()
    trainer.cleanup()
    assert trainer.state.epoch == 1
    check_final_checkpoint(tmp_path, trainer)


def test_the_final_checkpoint_is_complete_when_ctrl_c_comes_while_learning(
    tmp_path: Path, ctrl_c: None
) -> None:
    calls = []

    def press(new_values: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return 0 * new_values.sum()

    trainer = Trainer(small(), run_dir=tmp_path, custom_losses=[press])
    trainer.train()
    trainer.cleanup()
    assert trainer.state.epoch == 2
    check_final_checkpoint(tmp_path, trainer)


def test_the_last_checkpoint_stays_when_a_second_ctrl_c_ends_the_run_at_once(
    tmp_path: Path, ctrl_c: None
) -> None:
    trainer = Trainer(small(checkpoint_interval=1), run_dir=tmp_path)
    trainer.add_hook(Press("on_rollout_start"))
    trainer.add_hook(Press("on_update_end"))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.cleanup()
    assert [entry.epoch for entry in list_checkpoints(tmp_path / "checkpoints")] == [1]
    last = list(read_events(tmp_path / "events.jsonl"))[-1]
    assert (last.kind, last.payload["reason"]) == ("run_end", "KeyboardInterrupt: 2")


def test_no_evaluation_is_waited_for_when_a_signal_says_to_stop(
    tmp_path: Path, ctrl_c: None
) -> None:
    trainer = Trainer(small(), run_dir=tmp_path)
    trainer.add_hook(Press("on_rollout_start"))
    trainer.train()
    trainer.cleanup()
    assert trainer.evaluation_manager.episodes is None


class Failing(TrainerHook):
    def on_epoch_end(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 2:
            raise ValueError("boom")


def test_the_error_comes_out_and_the_run_is_saved_when_a_hook_fails(tmp_path: Path) -> None:
    with pytest.raises(HookError, match="'Failing' failed in on_epoch_end at epoch 2"):
        train(tmp_path, small(checkpoint_interval=1), hooks=[Failing()])
    assert [entry.epoch for entry in list_checkpoints(tmp_path / "checkpoints")] == [1, 2]
    last = list(read_events(tmp_path / "events.jsonl"))[-1]
    assert "boom" in last.payload["reason"]


def test_hooks_are_listed_in_their_order_when_a_run_is_set_up(tmp_path: Path) -> None:
    with Trainer(small(), run_dir=tmp_path) as trainer:
        trainer.add_hook(Failing())
        names = [line.split()[1] for line in trainer.describe_hooks().splitlines()[1:]]
    assert names == ["CheckpointHook", "EvaluationHook", "Failing", "MetricsHook"]


@pytest.mark.parametrize(
    ("settings", "hooks"),
    [
        ({"checkpoint_interval": 0}, ["EvaluationHook", "MetricsHook"]),
        ({"eval_episodes": 0}, ["CheckpointHook", "MetricsHook"]),
    ],
)
def test_a_hook_is_left_out_when_its_settings_turn_it_off(
    settings: dict[str, int], hooks: list[str], tmp_path: Path
) -> None:
    with Trainer(small(**settings), run_dir=tmp_path) as trainer:
        assert [type(hook).__name__ for hook in trainer.hooks] == hooks


def test_a_step_of_ones_own_trains_when_it_is_given() -> None:
    seen = []

    def step(
        state: Any, components: Any, config: TrainerConfig, experience: Any
    ) -> dict[str, float]:
        seen.append((state.epoch, config.total_timesteps, experience is components.experience))
        state.agent_step += 32
        return {"mine": 1.0}

    with Trainer(small(), step_fn=step) as trainer:
        assert trainer.train().metrics == {"mine": 1.0}
    assert seen == [(0, 64, True), (1, 64, True)]


def test_the_given_policy_trains_when_there_is_one() -> None:
    env = CorridorEnv()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size = env.observation_space.shape[0]
            self.head = torch.nn.Linear(size, env.action_space.n + 1)

        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.head(obs)
            return out[..., :-1], out[..., -1]

    net = Net()
    before = net.head.weight.detach().clone()
    with Trainer(small(), Curriculum(env=CorridorEnv), net) as trainer:
        trainer.train()
        assert isinstance(trainer.policy, Policy)
        assert trainer.policy.module is net
    assert not torch.equal(before, net.head.weight)


def test_state_of_ones_own_is_refused_when_the_run_was_restored_already() -> None:
    late = pytest.raises(StateError, match=r"add_state\('mine'\) came after setup")
    with Trainer(small()) as trainer, late:
        trainer.add_state(NamedState("mine", object()))


def test_managers_are_built_when_somebody_asks_for_them() -> None:
    with Trainer(small()) as trainer:
        built = [name for name in vars(trainer) if name.endswith("_manager")]
        assert built == ["environment_manager"]
        assert trainer.rollout_manager is trainer.rollout_manager
