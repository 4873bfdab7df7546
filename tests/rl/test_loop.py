import math
from typing import Any

import pytest

from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import PolicyError, RolloutError
from metta.rl.functional_trainer import create_training_components, functional_training_loop
from metta.rl.hooks.base import EVENTS, TrainerHook
from metta.rl.hooks.registry import HookRegistry
from metta.rl.loop import default_training_step, run_training
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_state import TrainerState
from metta.stateful import StateRegistry
from metta.train.train_config import RolloutConfig, TrainerConfig, TrainingConfig

SMALL = RolloutConfig(num_envs=2, horizon=8)


def ten_steps(state: TrainerState) -> dict[str, float]:
    state.agent_step += 10
    return {"loss": float(state.agent_step)}


def test_epochs_repeat_when_steps_are_left() -> None:
    state = TrainerState()
    history = run_training(state, ten_steps, until_step=25)
    assert history == {
        "epoch": [1.0, 2.0, 3.0],
        "agent_step": [10.0, 20.0, 30.0],
        "loss": [10.0, 20.0, 30.0],
    }
    assert (state.epoch, state.agent_step) == (3, 30)
    assert state.metrics == {"loss": 30.0}


def test_nothing_is_kept_when_no_history_is_wanted() -> None:
    state = TrainerState()
    assert run_training(state, ten_steps, until_step=25, keep_history=False) == {}
    assert (state.epoch, state.metrics) == (3, {"loss": 30.0})


def test_counting_goes_on_when_the_state_is_not_new() -> None:
    state = TrainerState(agent_step=100, epoch=7)
    assert run_training(state, ten_steps, until_step=110)["epoch"] == [8.0]


@pytest.mark.parametrize("until_step", [0, -5, 100])
def test_nothing_runs_when_the_goal_is_reached(until_step: int) -> None:
    state = TrainerState(agent_step=100)
    assert run_training(state, ten_steps, until_step=until_step) == {}


def test_the_epoch_is_finished_when_a_stop_is_requested_in_it() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        if state.epoch == 1:
            state.request_stop("solved")
        return ten_steps(state)

    assert run_training(TrainerState(), step, until_step=100)["epoch"] == [1.0, 2.0]


def test_gaps_are_nan_when_a_metric_comes_and_goes() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        ten_steps(state)
        return {"always": 1.0} | ({"second": 2.0} if state.epoch == 1 else {})

    history = run_training(TrainerState(), step, until_step=30)
    assert history["always"] == [1.0, 1.0, 1.0]
    assert [math.isnan(value) for value in history["second"]] == [True, False, True]


def test_metrics_keep_their_order_when_history_is_made() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        ten_steps(state)
        return dict.fromkeys("zyxabc", 0.0)

    history = run_training(TrainerState(), step, until_step=20)
    assert list(history) == ["epoch", "agent_step", *"zyxabc"]


def test_the_listener_gets_state_and_metrics_when_an_epoch_ends() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    state = TrainerState()
    run_training(
        state, ten_steps, until_step=20, on_epoch_end=lambda s, m: seen.append((s.agent_step, m))
    )
    assert seen == [
        (10, {"epoch": 1.0, "agent_step": 10.0, "loss": 10.0}),
        (20, {"epoch": 2.0, "agent_step": 20.0, "loss": 20.0}),
    ]


def test_an_error_leaves_the_loop_when_an_epoch_fails() -> None:
    def step(_: TrainerState) -> dict[str, float]:
        raise ValueError("broken")

    state = TrainerState()
    with pytest.raises(ValueError, match="broken"):
        run_training(state, step, until_step=10)
    assert state.epoch == 0


def test_idle_epochs_are_allowed_when_they_are_few() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        return ten_steps(state) if state.epoch % 50 == 49 else {"loss": 0.0}

    assert len(run_training(TrainerState(), step, until_step=20)["epoch"]) == 100


def test_a_rollout_error_ends_training_when_no_epoch_takes_a_step() -> None:
    with pytest.raises(RolloutError, match="100 epochs in a row collected no step"):
        run_training(TrainerState(), lambda _: {}, until_step=10)


class Recorder(TrainerHook):
    """Writes down every event it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in EVENTS:
            return lambda **offers: object.__getattribute__(self, "note")(name, offers)
        return object.__getattribute__(self, name)

    def note(self, event: str, offers: dict[str, Any]) -> None:
        self.heard.append(f"{event} {offers['trainer_state'].epoch}")


def test_every_event_comes_in_its_order_when_a_run_is_trained() -> None:
    recorder, config = Recorder(), TrainerConfig(total_timesteps=32, rollout=SMALL)
    functional_training_loop(config, curriculum=Curriculum(env=CorridorEnv), hooks=[recorder])
    epoch = ["on_epoch_start", "on_rollout_start", "on_rollout_end", "on_update_end"]
    assert recorder.heard == [
        "on_training_start 0",
        *(f"{event} 0" for event in epoch),
        "on_epoch_end 1",
        *(f"{event} 1" for event in epoch),
        "on_epoch_end 2",
        "on_training_end 2",
        "close 2",
    ]


def test_events_are_those_of_the_functional_loop_when_ppo_trainer_trains() -> None:
    recorders = Recorder(), Recorder()
    config = TrainingConfig(trainer=TrainerConfig(total_timesteps=32, rollout=SMALL))
    with PPOTrainer(None, CorridorEnv, config=config) as trainer:
        trainer.train(hooks=[recorders[0]])
    functional_training_loop(
        config.trainer, curriculum=Curriculum(env=CorridorEnv), hooks=[recorders[1]]
    )
    assert recorders[0].heard == recorders[1].heard


def test_the_failure_is_told_and_hooks_are_closed_when_a_step_raises() -> None:
    state, recorder = TrainerState(), Recorder()
    hooks = HookRegistry(state)
    hooks.add(recorder)

    def fail(state: TrainerState) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(state, fail, until_step=10, hooks=hooks)
    assert recorder.heard == [
        "on_training_start 0",
        "on_epoch_start 0",
        "on_exception 0",
        "close 0",
    ]


class Saver(TrainerHook):
    """Asks for a checkpoint of some epochs."""

    order = 10

    def __init__(self, epochs: set[int]) -> None:
        self.epochs, self.heard = epochs, []

    def on_epoch_end(self, trainer_state: TrainerState) -> None:
        if trainer_state.epoch in self.epochs:
            trainer_state.checkpoint_requests.append(self)

    def on_training_end(self, trainer_state: TrainerState) -> None:
        trainer_state.checkpoint_requests.append(self)

    def take(self, registry: Any, policy: Any, state: TrainerState) -> str:
        return f"epoch {state.epoch}, scored {state.shared.get('scored')}"

    def on_checkpoint(self, checkpoint: str) -> None:
        self.heard.append(f"told of {checkpoint}")

    def write(self, pending: str) -> None:
        self.heard.append(f"wrote {pending}")


class Scorer(TrainerHook):
    def on_epoch_end(self, trainer_state: TrainerState) -> None:
        trainer_state.shared["scored"] = trainer_state.epoch


def test_a_checkpoint_is_taken_after_all_hooks_and_written_after_they_were_told() -> None:
    state, saver = TrainerState(), Saver({1, 3})
    hooks = HookRegistry(state, registry=StateRegistry())
    hooks.add(saver)
    hooks.add(Scorer())
    run_training(state, ten_steps, until_step=30, hooks=hooks)
    taken = ["epoch 1, scored 1", "epoch 3, scored 3", "epoch 3, scored 3"]
    assert saver.heard == [f"{verb} {one}" for one in taken for verb in ("told of", "wrote")]
    assert state.checkpoint_requests == []


class Loader(TrainerHook):
    def __init__(self, policy: Any) -> None:
        self.policy, self.begins_with = policy, ""

    def on_training_start(self) -> Any:
        return self.policy

    def on_rollout_start(self, policy: Any) -> None:
        self.begins_with = policy.parameter_hash()


def test_training_begins_with_the_weights_that_a_hook_hands_over() -> None:
    with PPOTrainer(None, CorridorEnv, seed=5) as other, PPOTrainer(None, CorridorEnv) as trainer:
        given = other.policy.parameter_hash()
        assert trainer.policy.parameter_hash() != given
        loader = Loader(other.policy)
        trainer.train(1, hooks=[loader])
        assert loader.begins_with == given
        optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
        assert {id(p) for p in trainer.policy.parameters()} == optimized


def test_the_error_says_what_came_back_when_it_was_no_policy() -> None:
    with (
        PPOTrainer(None, CorridorEnv) as trainer,
        pytest.raises(PolicyError, match="returned a int"),
    ):
        trainer.train(8, hooks=[Loader(3)])


def test_a_step_of_ones_own_is_counted_when_it_forgets_the_epoch() -> None:
    state = TrainerState()
    run_training(state, ten_steps, until_step=20)
    assert state.epoch == 2


def test_hooks_see_the_state_that_a_step_is_given_when_it_is_another() -> None:
    config = TrainerConfig(rollout=SMALL)
    vec_env = make_vec_env(CorridorEnv, num_envs=2)
    parts = create_training_components(config, None, None, vec_env)
    recorder, state = Recorder(), TrainerState(epoch=7)
    parts.hooks.add(recorder)
    before = parts.registry.digest()
    default_training_step(state, parts, config, parts.experience)
    assert recorder.heard == ["on_rollout_start 7", "on_rollout_end 7", "on_update_end 7"]
    assert (state.epoch, state.agent_step, parts.state) == (8, 16, state)
    assert parts.registry.snapshot()["trainer_state"]["state"]["epoch"] == 8
    assert parts.registry.digest() != before
    vec_env.close()


@pytest.mark.parametrize(("signal", "first_waiting"), [(False, 3), (True, 2)])
def test_statistics_are_cleared_at_the_interval_and_at_the_end_whoever_listens(
    signal: bool, first_waiting: int
) -> None:
    class Look(TrainerHook):
        def on_epoch_start(self, trainer_state: TrainerState) -> None:
            starts.append(trainer_state.stats.stats_epoch_start)

    starts: list[int] = []
    settings = {"num_envs": 2, "n_steps": 8, "log_interval": 2}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        if signal:  # the run will be resumed, and its next row is that of the whole interval
            trainer.state.shared["stop_signal"] = 15
        trainer.train(48, hooks=[Look()])
        assert starts == [0, 0, 2]
        assert trainer.state.stats.stats_epoch_start == first_waiting
        assert bool(trainer.state.stats.rollout_stats) is signal
