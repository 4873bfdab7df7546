"""`PPOTrainer` in hands that know other libraries."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

from metta import load_policy
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv, MaskedCorridorEnv
from metta.errors import ConfigError, PolicyError
from metta.loggers.sinks import console as console_sink
from metta.rl.ppo_trainer import PPOTrainer
from metta.store import save_policy

QUIET: dict[str, Any] = {"verbose": False, "hidden_size": 8, "horizon": 16, "num_envs": 2}


def test_predict_gives_actions_that_the_environment_takes() -> None:
    env = gymnasium.make("CartPole-v1")
    with PPOTrainer("MlpPolicy", "CartPole-v1", **QUIET) as trainer:
        before = trainer.digest()
        observation, _ = env.reset(seed=1)
        for _ in range(5):
            action, state = trainer.predict(observation, deterministic=True)
            assert state is None
            observation, *_ = env.step(action)
        batch, _ = trainer.predict(np.stack([observation] * 64))
        assert batch.shape == (64,)
        assert set(batch.tolist()) == {0, 1}
        drawn = {int(trainer.predict(observation)[0]) for _ in range(64)}
        assert drawn == {0, 1}
        sure = trainer.predict(np.stack([observation] * 64), deterministic=True)[0]
        assert len(set(sure.tolist())) == 1
        assert trainer.digest() == before


def test_training_does_not_change_when_predict_is_called_in_between() -> None:
    with (
        PPOTrainer(None, CorridorEnv, **QUIET) as one,
        PPOTrainer(None, CorridorEnv, **QUIET) as two,
    ):
        one.train(64)
        observation = CorridorEnv().reset(seed=0)[0]
        two.train(32)
        two.predict(observation)
        two.train(32)
        assert one.policy.parameter_hash() == two.policy.parameter_hash()
        best = two.predict(observation, deterministic=True)[0]
        logits = two.policy.action_spec.mode(two.policy(_rows(observation)).dist_params[0], None)
        assert int(best) == int(logits[0])


def test_random_actions_follow_the_seed_when_the_weights_are_the_same() -> None:
    observation = CorridorEnv().reset(seed=0)[0]
    with PPOTrainer(None, CorridorEnv, **QUIET) as other:
        weights = other.policy.state_dict()

    def drawn(seed: int) -> list[int]:
        with PPOTrainer(None, CorridorEnv, seed=seed, **QUIET) as trainer:
            trainer.policy.load_state_dict(weights)
            return [int(trainer.predict(observation)[0]) for _ in range(64)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def _rows(observation: Any) -> dict[str, Any]:
    return {"obs": torch.as_tensor(observation)[None, None]}


def test_actions_are_in_the_units_of_the_environment() -> None:
    env = ContinuousTargetEnv()
    with PPOTrainer(None, ContinuousTargetEnv, **QUIET) as trainer:
        for seed in range(8):
            action, _ = trainer.predict(env.reset(seed=seed)[0])
            assert env.action_space.contains(action)


def test_masked_actions_are_never_predicted() -> None:
    env = MaskedCorridorEnv()
    observation, _ = env.reset(seed=0)
    with PPOTrainer(None, MaskedCorridorEnv, **QUIET) as trainer:
        mask = np.zeros(trainer.policy.action_spec.mask_size, bool)
        mask[-1] = True
        for deterministic in (False, True):
            action, _ = trainer.predict(observation, deterministic=deterministic, action_masks=mask)
            assert int(action) == len(mask) - 1


def test_state_is_carried_and_forgotten_when_the_policy_is_recurrent(tmp_path: Path) -> None:
    with PPOTrainer("MlpLstmPolicy", "CartPole-v1", **QUIET) as trainer:
        assert trainer.config.agent.core == "lstm"
        first, second = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
        _, state = trainer.predict(first)
        assert {name: part.shape for name, part in state.items()} == {
            "hidden": (3, 8),
            "cell": (3, 8),
        }
        _, carried = trainer.predict(second, state)
        _, fresh = trainer.predict(second)
        starts = np.array([True, False, False])
        _, mixed = trainer.predict(second, state, episode_start=starts)
        np.testing.assert_array_equal(mixed["cell"][0], fresh["cell"][0])
        np.testing.assert_array_equal(mixed["cell"][1:], carried["cell"][1:])
        assert not np.array_equal(carried["cell"], fresh["cell"])
        save_policy(tmp_path / "policy.safetensors", trainer.policy)
        agent = load_policy(tmp_path / "policy.safetensors")
        sure = {"deterministic": True}
        np.testing.assert_array_equal(
            agent.predict(second, state, **sure)[0], trainer.predict(second, state, **sure)[0]
        )


def test_what_predict_cannot_read_is_answered() -> None:
    with PPOTrainer(None, CorridorEnv, **QUIET) as trainer:
        with pytest.raises(PolicyError, match=r"observation, info = env\.reset\(\)"):
            trainer.predict(CorridorEnv().reset(seed=0))
        with pytest.raises(PolicyError, match="got a tuple as its state; pass what the last call"):
            trainer.predict(CorridorEnv().reset(seed=0)[0], (1, 2))


POLICIES: dict[str, tuple[str, str]] = {
    "MlpPolicy": ("mlp", "none"),
    "MultiInputPolicy": ("auto", "none"),
    "MlpLstmPolicy": ("mlp", "lstm"),
    "gru": ("gru", "none"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_goes_by_the_names_of_others(name: str) -> None:
    with PPOTrainer(name, CorridorEnv, **QUIET) as trainer:
        agent = trainer.config.agent
        assert (agent.name, agent.core) == POLICIES[name]


def test_one_of_two_is_asked_for_when_name_and_setting_differ() -> None:
    with pytest.raises(ConfigError, match="both set agent"):
        PPOTrainer("MlpLstmPolicy", CorridorEnv, core="gru")
    whole_name: dict[str, Any] = {"agent.core": "gru"}
    with pytest.raises(ConfigError, match=r"'MlpLstmPolicy' and agent\.core='gru' both set agent"):
        PPOTrainer("MlpLstmPolicy", CorridorEnv, **whole_name)
    whole_name = {"agent.core": "lstm"}
    with PPOTrainer("MlpLstmPolicy", CorridorEnv, **QUIET, **whole_name) as trainer:
        assert trainer.config.agent.core == "lstm"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("num_timesteps", "write trainer.state.agent_step"),
        ("set_env", r"write PPOTrainer\(trainer.policy, env\)"),
        ("compute_single_action", r"write trainer.predict\(observation\)"),
        ("evaluate", "write metta.sim.run_episodes"),
        ("nonsense", "no attribute 'nonsense'$"),
    ],
)
def test_an_attribute_of_another_library_is_answered(name: str, answer: str) -> None:
    with PPOTrainer(None, CorridorEnv, **QUIET) as trainer:
        assert not hasattr(trainer, name)
        with pytest.raises(AttributeError, match=answer):
            getattr(trainer, name)


def test_train_takes_the_steps_of_the_constructor_when_it_is_given_none() -> None:
    with PPOTrainer(None, CorridorEnv, total_timesteps=64, **QUIET) as trainer:
        assert trainer.train()["agent_step"] == [32, 64]
        assert trainer.train(reset_num_timesteps=False)["agent_step"] == [96, 128]


@pytest.mark.parametrize("as_argument", [False, True])
def test_progress_is_shown_when_a_bar_is_asked_for(
    as_argument: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with PPOTrainer(None, CorridorEnv, progress_bar=not as_argument, **QUIET) as trainer:
        trainer.train(64, progress_bar=True if as_argument else None)
        assert "64 / 64 steps" in capsys.readouterr().out
        history = trainer.train(64, progress_bar=False)
        assert capsys.readouterr().out == ""
        assert not math.isnan(history["episode_return"][-1])


def test_progress_stays_on_one_line_when_it_is_shown_in_a_notebook(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sink, "_SECONDS_BETWEEN_PICTURES", 0.0)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert Console().is_jupyter
    with PPOTrainer(None, CorridorEnv, progress_bar=True, **QUIET) as trainer:
        trainer.train(128)
    shown = capsys.readouterr().out
    assert shown.count("\r") == 4
    assert shown.count("\n") == 1
    assert shown.endswith("\n")
    assert "128 / 128 steps" in shown
