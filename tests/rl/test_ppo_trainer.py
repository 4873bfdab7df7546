"""Collect, learn and train, together and apart, as users call them."""

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn

from metta import PPOTrainer, combine_rollouts, load_rollout, save_rollout
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import (
    ContinuousTargetEnv,
    CorridorEnv,
    CountdownEnv,
    MaskedCorridorEnv,
    MemoryEnv,
    MultiDiscreteEnv,
    NestedEnv,
)
from metta.errors import ConfigError, MettaWarning, PolicyError, RolloutError
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.update_log import LOSS_NAMES
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig, TrainingConfig

COLUMNS = {
    "observations", "actions", "rewards", "terminated", "truncated", "valid", "episode_starts",
    "values", "next_values", "log_probs", "advantages", "returns",
}  # fmt: skip

SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 8, "n_epochs": 1, "hidden_size": 8}

KINDS: dict[str, Callable[..., PPOTrainer]] = {
    "plain": partial(PPOTrainer, None, CorridorEnv, **SMALL),
    "continuous": partial(PPOTrainer, None, ContinuousTargetEnv, **SMALL),
    "multi_discrete": partial(PPOTrainer, None, MultiDiscreteEnv, **SMALL),
    "masked": partial(PPOTrainer, None, MaskedCorridorEnv, **SMALL),
    "masked_observation": partial(
        PPOTrainer, None, partial(MaskedCorridorEnv, mask_in="observation"), **SMALL
    ),
    "nested": partial(PPOTrainer, None, NestedEnv, **SMALL),
    "recurrent": partial(PPOTrainer, None, MemoryEnv, **SMALL, core="lstm", bptt_horizon=4),
    "normalised": partial(
        PPOTrainer, None, ContinuousTargetEnv, **SMALL, normalize_obs=True, normalize_returns=True
    ),
    "vtrace": partial(PPOTrainer, None, CorridorEnv, **SMALL, advantage_estimator="vtrace"),
}


class CountingEnv(CorridorEnv):
    """Counts what is done to it, over all instances."""

    calls = 0

    def reset(self, **options: Any) -> Any:
        CountingEnv.calls += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        CountingEnv.calls += 1
        return super().step(action)


class Net(nn.Module):
    """A user's own network."""

    def __init__(self, inputs: int = 8, actions: int = 2, as_dict: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8)
        self.actor, self.critic = nn.Linear(8, actions), nn.Linear(8, 1)
        self.as_dict = as_dict

    def forward(self, obs: Tensor) -> Any:
        hidden = torch.tanh(self.body(obs))
        logits, value = self.actor(hidden), self.critic(hidden)
        return {"action_logits": logits, "value": value} if self.as_dict else (logits, value)


@pytest.fixture
def trainer() -> Any:
    with KINDS["plain"]() as made:
        yield made


# ---------------------------------------------------------------- collect_rollouts


def test_tensors_are_steps_by_rows_when_a_rollout_is_collected(trainer: PPOTrainer) -> None:
    data = trainer.collect_rollouts(5)
    assert data.keys() == COLUMNS
    assert data["observations"].shape == (5, 4, 8)
    assert data["actions"].shape == (5, 4)
    for name in COLUMNS - {"observations", "actions"}:
        assert data[name].shape == (5, 4), name
    assert data["actions"].dtype == torch.int64
    assert data["terminated"].dtype == data["valid"].dtype == torch.bool
    assert all(type(column) is Tensor for column in data.values())
    assert not any(column.requires_grad for column in data.values())


def test_the_horizon_is_used_when_no_number_is_given(trainer: PPOTrainer) -> None:
    assert trainer.collect_rollouts()["rewards"].shape == (8, 4)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("continuous", {"observations": (8, 4, 2), "actions": (8, 4, 2)}),
        ("multi_discrete", {"observations": (8, 4, 3), "actions": (8, 4, 3)}),
        ("masked", {"action_masks": (8, 4, 3), "observations": (8, 4, 9)}),
        ("masked_observation", {"action_masks": (8, 4, 3), "observations/position": (8, 4, 9)}),
        (
            "nested",
            {
                "observations/camera": (8, 4, 3, 8, 8),
                "observations/state/0": (8, 4),
                "observations/state/1/gear": (8, 4, 2),
                "observations/state/1/speed": (8, 4, 2),
                "observations/lamps": (8, 4, 4),
            },
        ),
    ],
)
def test_columns_follow_the_spaces_when_they_are_not_plain(
    kind: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    with KINDS[kind]() as trainer:
        data = trainer.collect_rollouts()
    for name, shape in shapes.items():
        assert data[name].shape == shape
    assert data.keys() - shapes.keys() == COLUMNS - {"observations", "actions"} | (
        {"actions"} - shapes.keys()
    )


def test_states_stand_at_segment_starts_when_a_policy_is_recurrent() -> None:
    with KINDS["recurrent"]() as trainer:
        data = trainer.collect_rollouts()
    states = {name: column for name, column in data.items() if name.startswith("recurrent_state/")}
    assert states
    assert all(column.shape[:2] == (2, 4) for column in states.values())
    assert all(bool((column[0] == 0).all()) for column in states.values())


def test_only_legal_actions_are_taken_when_the_environment_masks() -> None:
    with KINDS["masked"]() as trainer:
        data = trainer.collect_rollouts(64)
    assert bool(data["action_masks"].gather(-1, data["actions"][..., None]).all())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_learned_when_rollouts_are_collected(kind: str) -> None:
    with KINDS[kind]() as trainer:
        trainer.learn(trainer.collect_rollouts())
        parts = ("policy", "optimizer", "ppo", "trainer_state")
        before = digest_of({name: trainer.registry.snapshot()[name] for name in parts})
        trainer.collect_rollouts()
        trainer.collect_rollouts(3 if kind != "recurrent" else 4)
        after = digest_of({name: trainer.registry.snapshot()[name] for name in parts})
    assert before == after


def test_data_belongs_to_the_caller_when_more_is_collected(trainer: PPOTrainer) -> None:
    data = trainer.collect_rollouts()
    before = digest_of(data)
    trainer.collect_rollouts()
    trainer.learn(data)
    assert digest_of(data) == before


def test_the_run_is_unharmed_when_a_caller_edits_the_data() -> None:
    with KINDS["plain"]() as first, KINDS["plain"]() as second:
        for column in first.collect_rollouts().values():
            column.zero_()
        second.collect_rollouts()
        assert digest_of(first.collect_rollouts()) == digest_of(second.collect_rollouts())


@pytest.mark.parametrize("kind", ["plain", "masked", "recurrent", "continuous"])
def test_episodes_run_on_when_the_number_of_steps_changes(kind: str) -> None:
    with KINDS[kind]() as trainer:
        pieces = [trainer.collect_rollouts(steps) for steps in (3, 8, 2)]
    assert bool(pieces[0]["episode_starts"][0].all())
    for before, after in itertools.pairwise(pieces):
        ended = before["terminated"][-1] | before["truncated"][-1]
        assert torch.equal(after["episode_starts"][0], ended)
        assert not bool(ended.all())
        going = ~ended
        # the value of the state that a rollout ended in is the first value of the next one
        reached, first = before["next_values"][-1][going], after["values"][0][going]
        torch.testing.assert_close(reached, first, rtol=1e-5, atol=1e-6)


def test_each_observation_follows_the_last_when_rollouts_are_cut() -> None:
    with PPOTrainer(None, partial(CountdownEnv, 50), num_envs=2, n_steps=8) as trainer:
        seen = [trainer.collect_rollouts(steps)["observations"] for steps in (3, 8, 1, 5)]
    counted = torch.cat(seen)[:, 0, 0]
    assert counted.tolist() == list(range(17))


@pytest.mark.parametrize("steps", [0, -3])
def test_an_empty_rollout_comes_with_a_warning_when_no_step_is_asked_for(
    trainer: PPOTrainer, steps: int
) -> None:
    with pytest.warns(MettaWarning, match="collects nothing"):
        data = trainer.collect_rollouts(steps)
    assert all(column.shape == (0, 4) for column in data.values())


# ---------------------------------------------------------------- learn


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_change_and_losses_are_finite_when_it_learns(kind: str) -> None:
    with KINDS[kind]() as trainer:
        data = trainer.collect_rollouts()
        before = trainer.policy.parameter_hash()
        losses = trainer.learn(data)
    assert trainer.policy.parameter_hash() != before
    assert set(LOSS_NAMES) <= losses.keys()
    assert all(math.isfinite(value) for value in losses.values())
    assert all(type(value) is float for value in losses.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_keeps_every_bit_when_it_is_learned_from(kind: str) -> None:
    with KINDS[kind]() as trainer:
        data = trainer.collect_rollouts()
        before, names = digest_of(data), list(data)
        trainer.learn(data)
    assert digest_of(data) == before
    assert list(data) == names


def test_the_environment_is_not_touched_when_it_learns() -> None:
    with PPOTrainer(None, CountingEnv, **SMALL) as trainer:
        data = trainer.collect_rollouts()
        before, collector = CountingEnv.calls, digest_of(trainer.collector.state_dict())
        trainer.learn(data)
        trainer.learn(data)
        assert CountingEnv.calls == before
        assert digest_of(trainer.collector.state_dict()) == collector


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_teaches_the_same_when_it_holds_the_data(tmp_path: Path, kind: str) -> None:
    with KINDS[kind]() as first, KINDS[kind]() as second:
        data = first.collect_rollouts()
        path = save_rollout(tmp_path / "rollout.safetensors", data)
        assert first.learn(data) == second.learn(path)
        assert first.policy.parameter_hash() == second.policy.parameter_hash()


@pytest.mark.parametrize("given", [str, Path, load_rollout])
def test_a_file_goes_by_text_path_or_content_when_it_is_learned_from(
    tmp_path: Path, given: Callable[[Any], Any]
) -> None:
    with KINDS["plain"]() as first, KINDS["plain"]() as second:
        data = first.collect_rollouts()
        path = save_rollout(tmp_path / "rollout.safetensors", data)
        assert first.learn(data) == second.learn(given(path))


def test_advantages_are_computed_when_they_are_absent() -> None:
    with KINDS["plain"]() as first, KINDS["plain"]() as second:
        data = first.collect_rollouts()
        bare = {k: v for k, v in data.items() if k not in ("advantages", "returns")}
        assert first.learn(data) == second.learn(bare)
        assert first.policy.parameter_hash() == second.policy.parameter_hash()


def test_advantages_are_used_when_they_are_present() -> None:
    with KINDS["plain"]() as first, KINDS["plain"]() as second:
        data = first.collect_rollouts()
        first.learn(data)
        second.learn({**data, "advantages": -data["advantages"]})
        assert first.policy.parameter_hash() != second.policy.parameter_hash()


def test_normalisers_take_the_data_in_when_learning_is_over() -> None:
    with KINDS["normalised"]() as trainer:
        data = trainer.collect_rollouts()
        scale = float(trainer.policy.value_scale)
        first = trainer.learn(data)
        assert float(trainer.policy.value_scale) != scale
    with KINDS["normalised"]() as again:
        bare = {k: v for k, v in data.items() if k not in ("valid", "advantages", "returns")}
        assert again.learn(bare) == first
        assert again.policy.parameter_hash() == trainer.policy.parameter_hash()


@pytest.mark.parametrize("other", ["continuous", "masked", "nested", "recurrent"])
def test_a_rollout_error_is_raised_when_data_is_from_another_environment(
    trainer: PPOTrainer, other: str
) -> None:
    with KINDS[other]() as stranger:
        data = stranger.collect_rollouts()
    before = trainer.digest()
    with pytest.raises(RolloutError):
        trainer.learn(data)
    assert trainer.digest() == before


def test_a_rollout_error_is_raised_when_another_network_collected(trainer: PPOTrainer) -> None:
    with PPOTrainer(Net(), CorridorEnv, **SMALL) as stranger:
        data = stranger.collect_rollouts()
    with pytest.raises(RolloutError, match="another architecture"):
        trainer.learn(data)


def test_the_missing_column_is_named_when_data_is_incomplete(trainer: PPOTrainer) -> None:
    data = trainer.collect_rollouts()
    with pytest.raises(RolloutError, match=r"lacks \['log_probs'\]"):
        trainer.learn({k: v for k, v in data.items() if k != "log_probs"})


@pytest.mark.parametrize(
    "empty",
    [
        lambda _: {},
        lambda data: {name: column[:0] for name, column in data.items()},
        lambda data: {**data, "valid": torch.zeros_like(data["valid"])},
    ],
)
def test_zeros_and_a_warning_come_back_when_a_rollout_is_empty(
    trainer: PPOTrainer, empty: Callable[[Any], Any]
) -> None:
    data = empty(trainer.collect_rollouts())
    before = trainer.digest()
    with pytest.warns(MettaWarning, match="empty rollout"):
        losses = trainer.learn(data)
    assert losses == dict.fromkeys(LOSS_NAMES, 0.0)
    assert trainer.digest() == before


def test_collecting_nothing_and_learning_from_it_is_harmless_when_chained(
    trainer: PPOTrainer,
) -> None:
    with pytest.warns(MettaWarning):
        losses = trainer.learn(trainer.collect_rollouts(0))
    assert set(losses.values()) == {0.0}


# ---------------------------------------------------------------- combine_rollouts


@pytest.mark.parametrize("kind", ["plain", "nested", "masked", "recurrent"])
def test_one_trainer_learns_from_many_when_rollouts_are_combined(kind: str) -> None:
    with KINDS[kind](seed=1) as first, KINDS[kind](seed=1) as central:
        second = KINDS[kind](seed=2)
        second.policy.load_state_dict(first.policy.state_dict())
        combined = combine_rollouts([first.collect_rollouts(), second.collect_rollouts()])
        second.close()
        assert combined["values"].shape == (8, 8)
        assert combined.manifest["policy_hash"] == first.policy.parameter_hash()
        losses = central.learn(combined)
        assert math.isfinite(losses["total_loss"])
        assert abs(losses["approx_kl"]) < 1.0


# ---------------------------------------------------------------- train


def test_history_has_one_entry_per_epoch_when_it_trains(trainer: PPOTrainer) -> None:
    history = trainer.train(total_timesteps=96)
    assert {len(column) for column in history.values()} == {3}
    assert history["agent_step"] == [32.0, 64.0, 96.0]
    assert history["epoch"] == [1.0, 2.0, 3.0]
    assert set(LOSS_NAMES) | {"episode_return", "learning_rate", "clip_coef"} <= history.keys()


def test_the_last_epoch_is_whole_when_the_total_is_no_multiple(trainer: PPOTrainer) -> None:
    assert trainer.train(total_timesteps=33)["agent_step"] == [32.0, 64.0]


def test_the_configured_total_is_used_when_none_is_given() -> None:
    with KINDS["plain"](total_timesteps=64) as trainer:
        assert trainer.train()["agent_step"][-1] == 64.0


def test_training_continues_when_it_is_called_twice() -> None:
    make = partial(KINDS["plain"], lr_schedule="constant")
    with make() as once, make() as twice:
        whole = once.train(128)
        first, second = twice.train(64), twice.train(64)
        assert second["agent_step"] == [96.0, 128.0]
        assert second["epoch"] == [3.0, 4.0]
        assert first["policy_loss"] + second["policy_loss"] == whole["policy_loss"]
        assert once.policy.parameter_hash() == twice.policy.parameter_hash()


def test_the_phases_apart_equal_train_when_they_are_called_in_turn() -> None:
    make = partial(KINDS["plain"], lr_schedule="constant")
    with make() as together, make() as apart:
        together.train(96)
        for _ in range(3):
            apart.learn(apart.collect_rollouts())
        assert together.policy.parameter_hash() == apart.policy.parameter_hash()


def test_schedules_follow_progress_when_it_trains() -> None:
    settings = {"lr": 1e-3, "lr_schedule": "linear", "clip_schedule": "linear"}
    with KINDS["plain"](**settings) as trainer:
        history = trainer.train(128)
    assert history["learning_rate"] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert history["clip_coef"] == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert trainer.progress == 0.75


def test_the_listener_sees_each_epoch_when_it_trains(trainer: PPOTrainer) -> None:
    seen: list[tuple[int, float]] = []
    trainer.train(64, on_epoch_end=lambda state, m: seen.append((state.epoch, m["agent_step"])))
    assert seen == [(1, 32.0), (2, 64.0)]


def test_training_stops_and_can_go_on_when_a_stop_is_requested(trainer: PPOTrainer) -> None:
    history = trainer.train(320, on_epoch_end=lambda state, _: state.request_stop("enough"))
    assert history["agent_step"] == [32.0]
    assert trainer.state.stop_reason == "enough"
    assert trainer.train(32)["agent_step"] == [64.0]


def test_the_mean_return_is_nan_when_no_episode_has_ended() -> None:
    with PPOTrainer(None, partial(CountdownEnv, 9), num_envs=2, n_steps=5) as trainer:
        history = trainer.train(30)
    # 5 steps, 10, 15 of episodes of 9 steps that return 45
    assert math.isnan(history["episode_return"][0])
    assert history["episode_return"][1:] == [45.0, 45.0]


def test_the_task_is_learned_when_training_is_long_enough() -> None:
    settings = {"num_envs": 8, "n_steps": 32, "learning_rate": 1e-2, "hidden_size": 16}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        history = trainer.train(4_000)
    # the best return is 0.4; a random walk needs dozens of steps of -0.1
    assert history["episode_return"][-1] > 0.0
    assert history["episode_return"][1] < -1.0


# ---------------------------------------------------------------- subclasses


class DoublingTrainer(PPOTrainer):
    """Adds a column of its own to the data."""

    def collect_rollouts(self, n_steps: int | None = None) -> dict[str, Tensor]:
        data = super().collect_rollouts(n_steps)
        data["novelty"] = data["rewards"] * 2
        return data


def test_a_loss_receives_the_column_when_a_subclass_adds_it() -> None:
    seen: list[Tensor] = []

    def curiosity(novelty: Tensor, rewards: Tensor, new_values: Tensor) -> Tensor:
        seen.append(novelty)
        assert torch.equal(novelty, rewards * 2)
        return (new_values * novelty).mean()

    with DoublingTrainer(None, CorridorEnv, custom_losses=[curiosity], **SMALL) as trainer:
        history = trainer.train(64)
    assert seen[0].shape == (32,)
    assert len(history["custom/curiosity"]) == 2


class TwiceTrainer(PPOTrainer):
    """Collects two rollouts for each update."""

    def collect_rollouts(self, n_steps: int | None = None) -> dict[str, Tensor]:
        first, second = super().collect_rollouts(n_steps), super().collect_rollouts(n_steps)
        return combine_rollouts([first, second])


def test_every_step_counts_when_a_subclass_collects_more_than_once() -> None:
    with TwiceTrainer(None, CorridorEnv, **SMALL) as trainer:
        assert trainer.train(128)["agent_step"] == [64.0, 128.0]


class ReplayTrainer(PPOTrainer):
    """Collects nothing: reads what was given."""

    data: Mapping[str, Tensor]

    def collect_rollouts(self, n_steps: int | None = None) -> Any:
        assert n_steps == SMALL["n_steps"]
        return self.data


def test_handed_over_steps_count_when_a_subclass_does_not_use_the_environment(
    trainer: PPOTrainer,
) -> None:
    with ReplayTrainer(None, CorridorEnv, **SMALL) as replay:
        replay.data = trainer.collect_rollouts()
        assert replay.train(64)["agent_step"] == [32.0, 64.0]


def test_training_ends_with_an_error_when_a_subclass_collects_nothing(trainer: PPOTrainer) -> None:
    with ReplayTrainer(None, CorridorEnv, **SMALL) as replay:
        replay.data = {name: column[:0] for name, column in trainer.collect_rollouts().items()}
        with (
            warnings.catch_warnings(action="ignore", category=MettaWarning),
            pytest.raises(RolloutError, match="collected no step"),
        ):
            replay.train(64)


class TwoPassTrainer(PPOTrainer):
    """Learns twice from everything and reports its own number."""

    def learn(self, rollout_data: Any) -> dict[str, float]:
        super().learn(rollout_data)
        return super().learn(rollout_data) | {"passes": 2.0}


def test_train_uses_the_override_when_a_subclass_replaces_learn() -> None:
    with TwoPassTrainer(None, CorridorEnv, **SMALL) as trainer:
        history = trainer.train(64)
    assert history["passes"] == [2.0, 2.0]
    assert trainer.ppo.num_updates == 4


# ---------------------------------------------------------------- environments and policies


@pytest.mark.parametrize(
    ("env", "rows", "name"),
    [
        ("CartPole-v1", 4, "CartPole-v1"),
        (CorridorEnv(), 1, "CorridorEnv"),
        (gymnasium.make("CartPole-v1"), 1, "CartPole-v1"),
        (CorridorEnv, 4, "CorridorEnv"),
        (lambda: CorridorEnv(5), 4, "<lambda>"),
        ([CorridorEnv, CorridorEnv, CorridorEnv], 3, "list"),
        (SyncVectorEnv([CorridorEnv, CorridorEnv]), 2, "SyncVectorEnv"),
        (make_vec_env(CorridorEnv, num_envs=2), 2, "SerialVecEnv"),
    ],
    ids=["id", "instance", "made", "factory", "lambda", "list", "gym vector", "vec env"],
)
def test_training_works_when_the_environment_is_of_any_kind(env: Any, rows: int, name: str) -> None:
    with PPOTrainer(None, env, **SMALL | {"num_envs": rows}) as trainer:
        data = trainer.collect_rollouts()
        assert data["rewards"].shape == (8, rows)
        assert data.manifest["env_id"] == name
        assert trainer.train(8 * rows)["agent_step"][-1] == 8 * rows


@pytest.mark.parametrize(
    "policy",
    [
        lambda: None,
        lambda: Net(),
        lambda: Net(as_dict=True),
        lambda: Policy(Net(), CorridorEnv().observation_space, CorridorEnv().action_space),
        lambda: make_policy(
            CorridorEnv().observation_space,
            CorridorEnv().action_space,
            AgentConfig(core="gru", hidden_size=8),
        ),
    ],
    ids=["default", "tuple", "dict", "Policy", "recurrent Policy"],
)
def test_training_works_when_the_policy_is_of_any_kind(policy: Callable[[], Any]) -> None:
    module = policy()
    with PPOTrainer(module, CorridorEnv, **SMALL) as trainer:
        before = trainer.policy.parameter_hash()
        trainer.train(32)
        assert trainer.policy.parameter_hash() != before
        if isinstance(module, Net):
            assert trainer.policy.module is module
            state = module.state_dict()
            assert digest_of(state) == digest_of(trainer.policy.module.state_dict())


def test_users_own_weights_change_when_their_module_is_trained() -> None:
    module = Net()
    before = copy.deepcopy(module.state_dict())
    with PPOTrainer(module, CorridorEnv, **SMALL) as trainer:
        trainer.train(32)
    assert all(not torch.equal(module.state_dict()[name], old) for name, old in before.items())


def test_a_policy_error_is_raised_when_a_module_does_not_fit_the_actions() -> None:
    with pytest.raises(PolicyError, match="5 action parameters"):
        PPOTrainer(Net(actions=5), CorridorEnv, **SMALL)


def test_a_policy_error_is_raised_when_a_policy_is_for_other_spaces() -> None:
    policy = make_policy(CountdownEnv().observation_space, CountdownEnv().action_space)
    with pytest.raises(PolicyError, match=r"observations Box\(0.0, 5.0.*the environment has"):
        PPOTrainer(policy, CorridorEnv, **SMALL)


# ---------------------------------------------------------------- settings


def test_settings_go_by_any_usual_name_when_a_trainer_is_made() -> None:
    settings = {"lr": 1e-2, "n_epochs": 3, "clip_range": 0.1, "n_steps": 4, "n_envs": 2}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        config = trainer.config.trainer
        assert config.optimizer.learning_rate == trainer.ppo.learning_rate == 1e-2
        assert (config.ppo.update_epochs, config.ppo.clip_coef) == (3, 0.1)
        assert trainer.collect_rollouts()["rewards"].shape == (4, 2)


def test_settings_lie_over_the_config_when_both_are_given() -> None:
    config = TrainingConfig(agent=AgentConfig(hidden_size=5))
    with PPOTrainer(None, CorridorEnv, config=config, n_envs=2, n_steps=4) as trainer:
        assert trainer.config.agent.hidden_size == 5
        assert trainer.env.num_rows == 2
    assert config.trainer.rollout.num_envs == 8


def test_a_config_error_hints_when_a_setting_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'learnig_rate'; did you mean"):
        PPOTrainer(None, CorridorEnv, learnig_rate=1e-3)


def test_a_config_error_is_raised_at_once_when_a_minibatch_does_not_divide() -> None:
    with pytest.raises(
        ConfigError,
        match=r"minibatch_size=10 does not divide .* 32 \(horizon 8 x 4 rows\); try .*8 or 16",
    ):
        PPOTrainer(None, CorridorEnv, batch_size=10, **SMALL)


def test_rows_are_those_of_the_environment_when_it_brings_its_own() -> None:
    env = make_vec_env(CorridorEnv, num_envs=3)
    with pytest.raises(ConfigError, match="horizon 8 x 3 rows"):
        PPOTrainer(None, env, batch_size=16, **SMALL)
    env.close()


def test_a_config_error_is_raised_at_once_when_segments_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="in segments of 4 steps"):
        KINDS["recurrent"](batch_size=2)
    with pytest.raises(ConfigError, match="bptt_horizon=3 does not divide the horizon of 8"):
        KINDS["recurrent"](bptt_horizon=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_config_error_is_raised_when_there_is_no_such_device() -> None:
    with pytest.raises(ConfigError, match="device='cuda' cannot be used here"):
        PPOTrainer(None, CorridorEnv, device="cuda")


def test_a_device_object_works_when_it_is_given() -> None:
    with PPOTrainer(None, CorridorEnv, device=torch.device("cpu"), **SMALL) as trainer:
        assert trainer.device == torch.device("cpu")


# ---------------------------------------------------------------- adaptive batch sizes


@pytest.mark.parametrize("env", ["CartPole-v1", CorridorEnv])
def test_sizes_fit_the_machine_when_auto_batch_is_on(env: Any) -> None:
    with PPOTrainer(None, env, auto_batch=True) as trainer:
        plan, config = trainer.batch_plan, trainer.config.trainer
        assert plan is not None
        assert config.rollout.num_envs == trainer.env.num_rows == plan.num_envs
        assert config.rollout.horizon == plan.horizon
        assert config.ppo.minibatch_size == plan.minibatch_size
        assert f"{plan.num_envs} envs" in plan.explanation


def test_explicit_sizes_stay_when_auto_batch_is_on() -> None:
    settings = {"n_envs": 8, "n_steps": 24, "batch_size": 48, "core": "lstm"}
    with PPOTrainer(None, CorridorEnv, auto_batch=True, **settings) as trainer:
        config = trainer.config.trainer
        assert (config.rollout.num_envs, config.rollout.horizon) == (8, 24)
        assert config.ppo.minibatch_size == 48
        assert 24 % config.rollout.bptt_horizon == 0
        data = trainer.collect_rollouts()
        assert data["rewards"].shape == (24, 8)
        trainer.learn(data)


def test_sizes_of_a_config_stay_when_auto_batch_is_on() -> None:
    config = TrainingConfig()
    with PPOTrainer(None, CorridorEnv, config=config, auto_batch=True, num_groups=2) as trainer:
        assert trainer.env.num_groups == 2
        assert trainer.env.num_rows % 2 == 0
    preset = PPOTrainer(None, CorridorEnv, n_envs=2).config
    with PPOTrainer(None, CorridorEnv, config=preset, auto_batch=True) as trainer:
        assert trainer.env.num_rows == 2


def test_a_config_error_is_raised_when_auto_batch_cannot_choose() -> None:
    with pytest.raises(ConfigError, match="CorridorEnv has its own"):
        PPOTrainer(None, CorridorEnv(), auto_batch=True)


def test_there_is_no_plan_when_auto_batch_is_off(trainer: PPOTrainer) -> None:
    assert trainer.batch_plan is None


# ---------------------------------------------------------------- lifetime


class ClosingEnv(CorridorEnv):
    closed = 0

    def close(self) -> None:
        ClosingEnv.closed += 1


def test_environments_are_closed_when_the_trainer_is() -> None:
    ClosingEnv.closed = 0
    trainer = PPOTrainer(None, ClosingEnv, **SMALL)
    with trainer as entered:
        assert entered is trainer
    trainer.close()
    assert ClosingEnv.closed >= 4


def test_environments_are_closed_when_the_trainer_cannot_be_built() -> None:
    ClosingEnv.closed = 0
    with pytest.raises(PolicyError):
        PPOTrainer(Net(actions=5), ClosingEnv, **SMALL)
    assert ClosingEnv.closed >= 4


def test_a_users_environment_stays_open_when_the_trainer_cannot_be_built() -> None:
    ClosingEnv.closed = 0
    with pytest.raises(PolicyError):
        PPOTrainer(Net(actions=5), ClosingEnv(), **SMALL)
    assert ClosingEnv.closed == 0


def test_no_worker_is_left_when_the_trainer_cannot_be_built() -> None:
    """The fixture that looks for processes fails this test otherwise."""
    with pytest.raises(PolicyError):
        PPOTrainer(Net(actions=5), CorridorEnv, num_workers=1, **SMALL)


def test_state_returns_when_a_snapshot_is_restored_into_a_new_trainer() -> None:
    with (
        KINDS["plain"](lr_schedule="linear") as first,
        KINDS["plain"](lr_schedule="linear") as other,
    ):
        data = first.collect_rollouts()
        first.train(64)
        other.registry.restore(copy.deepcopy(first.registry.snapshot()))
        assert other.digest() == first.digest()
        assert other.progress == first.progress == 0.5
        assert other.learn(data) == first.learn(data)
        assert other.digest() == first.digest()


def test_the_learned_loss_is_part_of_the_state_when_it_has_parameters() -> None:
    head = nn.Linear(1, 1)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def forward(self, new_values: Tensor) -> Tensor:
            return self.head(new_values[:, None]).square().mean()

    with KINDS["plain"](custom_losses=[CustomLoss(Head(), name="head")]) as trainer:
        assert "loss/head" in trainer.registry.names()
        before = trainer.digest()
        with torch.no_grad():
            head.weight += 1
        assert trainer.digest() != before


def test_numpy_arrays_are_not_shared_when_environments_reuse_theirs() -> None:
    class Reusing(CorridorEnv):
        def _begin(self) -> Any:
            self.kept = np.zeros(8, np.float32)
            return self.kept, {}

        def _advance(self, _action: int) -> Any:
            self.kept[:] += 1
            return self.kept, 0.5, False, self.steps >= 3, {}

    with PPOTrainer(None, Reusing, num_envs=1, n_steps=5) as trainer:
        seen = trainer.collect_rollouts()["observations"][:, 0, 0]
    assert seen.tolist() == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_arguments_reach_the_environment_when_they_are_a_setting() -> None:
    kwargs = {"max_episode_steps": 3}
    with PPOTrainer(None, "CartPole-v1", num_envs=2, n_steps=8, env_kwargs=kwargs) as trainer:
        trainer.collect_rollouts()
        assert int(trainer.collector.meter.lengths.max()) <= 3
        assert trainer.mean_return == 3.0


def test_rollouts_are_copies_when_a_subclass_learns_in_its_own_way() -> None:
    kept: list[Any] = []

    class Keeping(PPOTrainer):
        def learn(self, rollout_data: Any) -> dict[str, float]:
            kept.append(rollout_data)
            return super().learn(rollout_data)

    with Keeping(None, "CartPole-v1", num_envs=2, n_steps=8, hidden_size=8) as trainer:
        trainer.train(32)
    first, second = (rollout["observations"] for rollout in kept)
    assert not torch.equal(first, second)
    assert kept[0].manifest["rollout"] == 0
