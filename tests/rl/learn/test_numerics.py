from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from metta import PPOTrainer
from metta.agent.factory import make_policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv, NestedEnv
from metta.errors import ConfigError
from metta.rl.compiled.choice import compile_pays_off
from metta.rl.learn.numerics import NumericsPlan, resolve_device, resolve_plan, threads_for
from metta.rl.training_components import resolve_batch
from metta.train.settings import apply_settings
from metta.train.train_config import AgentConfig, TrainerConfig, TrainingConfig

PLAN = NumericsPlan(threads=2, actor="numpy", driver="eager", groups=1, dtype="x", device="cpu")


def policy(**config: Any) -> Any:
    return make_policy(spaces.Box(0.0, 1.0, (4,)), spaces.Discrete(2), AgentConfig(**config))


def test_threads_return_when_a_plan_was_applied() -> None:
    before = torch.get_num_threads()
    with PLAN.applied():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_threads_return_when_the_block_fails() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="broken"), PLAN.applied():
        raise ValueError("broken")
    assert torch.get_num_threads() == before


def test_one_thread_is_chosen_when_the_network_is_small() -> None:
    with NumericsPlan(3, "eager", "eager", 1, "x", "cpu").applied():
        small, large = threads_for(policy(), 256), threads_for(policy(hidden_size=1024), 256)
        wide = threads_for(policy(), 16_384)
    assert (small, large, wide) == (1, 3, 3)


def test_all_threads_are_chosen_when_the_network_convolves() -> None:
    space = spaces.Box(0, 255, (3, 8, 8), "uint8")
    convolving = make_policy(space, spaces.Discrete(2), AgentConfig(hidden_size=8))
    assert any(isinstance(part, nn.Conv2d) for part in convolving.modules())
    with NumericsPlan(3, "eager", "eager", 1, "x", "cpu").applied():
        assert threads_for(convolving) == 3


def test_a_compiler_is_worth_waiting_for_when_the_run_is_long() -> None:
    short, long = TrainerConfig(total_timesteps=400_000), TrainerConfig(total_timesteps=10_000_000)
    assert not compile_pays_off(short, 1024)
    assert compile_pays_off(long, 1024)
    # the same steps in fewer, larger minibatches have less overhead to save
    assert not compile_pays_off(TrainerConfig(total_timesteps=4_000_000), 65_536)


def test_the_plan_is_one_line_when_it_is_described() -> None:
    parts = {"threads": 1, "num_groups": 2, "actor": "traced"}
    plan = resolve_plan(policy(), driver="eager", **parts)
    assert plan.describe() == "cpu, 1 thread, traced actor, eager update, 2 groups, torch.float32"
    compiled = resolve_plan(policy(), driver="step", compiler="g++ 12", **parts)
    assert "step update compiled by g++ 12, " in compiled.describe()
    assert "2 threads" in PLAN.describe()


@pytest.mark.parametrize(
    ("actor", "core", "kind"),
    [("auto", "none", "c"), ("eager", "none", "eager"), ("auto", "lstm", "traced")],
)
def test_the_plan_tells_the_actor_that_was_built_when_it_is_made(
    actor: str, core: str, kind: str
) -> None:
    settings = {"actor": actor, "core": core, "num_envs": 2, "n_steps": 16, "hidden_size": 8}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        assert trainer.plan.actor == kind
        assert trainer.plan.groups == 1


def test_the_users_threads_return_when_a_phase_is_over() -> None:
    seen: list[int] = []

    def look(new_values: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return new_values.mean() * 0.0

    settings = {"threads": 2, "num_envs": 2, "n_steps": 4, "hidden_size": 8, "n_epochs": 1}
    with PPOTrainer(None, CorridorEnv, custom_losses=[look], **settings) as trainer:
        before = torch.get_num_threads()
        trainer.learn(trainer.collect_rollouts())
        assert torch.get_num_threads() == before
    assert set(seen) == {2}


def test_a_device_resolves_when_it_exists() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto") == torch.device(gpu)


@pytest.mark.parametrize("device", ["cuda:99", "banana", "", "meta", "cpu:x", "hpu", "xla"])
def test_a_config_error_says_what_works_when_a_device_cannot_be_used(device: str) -> None:
    with pytest.raises(ConfigError, match=rf"device='{device}' .*; use 'cpu' or 'auto'"):
        resolve_device(device)


def test_rows_are_measured_when_a_batch_is_resolved() -> None:
    _, small = resolve_batch(TrainingConfig(), CorridorEnv)
    _, large = resolve_batch(TrainingConfig(), lambda: NestedEnv(image_size=64))
    assert small.batch_size == large.batch_size
    used = [float(plan.explanation.split("; ")[-1].split(" MB")[0]) for plan in (small, large)]
    # 3 x 64 x 64 pixels against eight floats
    assert used[1] > 50 * used[0]


def test_settings_count_as_set_when_they_equal_the_default() -> None:
    planned, _ = resolve_batch(
        apply_settings(TrainingConfig(), {"n_envs": 8, "n_steps": 128}), CorridorEnv
    )
    assert (planned.trainer.rollout.num_envs, planned.trainer.rollout.horizon) == (8, 128)


@pytest.mark.parametrize("env", [CorridorEnv(), [CorridorEnv], make_vec_env(CorridorEnv), 3])
def test_a_config_error_is_raised_when_the_number_of_environments_is_fixed(env: Any) -> None:
    with pytest.raises(ConfigError, match="give an id or a factory"):
        resolve_batch(TrainingConfig(), env)
