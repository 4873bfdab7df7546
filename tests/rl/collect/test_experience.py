"""What a rollout says about the states that its steps reached."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.output import PolicyOutput
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import CountdownEnv
from metta.errors import ConfigError
from metta.ops.advantages import gae
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig


class ObsAsValue(nn.Module):
    """The value is the observation itself; both actions are equally likely."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(obs), 2), obs[:, 0] * self.scale


class SumAsValue(ObsAsValue):
    """The value is the sum of all observations of the episode up to now."""

    def initial_state(self, num_rows: int) -> dict[str, Tensor]:
        return {"total": torch.zeros(num_rows)}

    def forward(  # type: ignore[override]
        self, obs: Tensor, state: dict[str, Tensor], starts: Tensor
    ) -> PolicyOutput:
        total, values = state["total"], []
        for step in range(len(obs)):
            total = torch.where(starts[step], 0.0, total) + obs[step, :, 0]
            values.append(total)
        value = torch.stack(values) * self.scale
        return PolicyOutput(torch.zeros(*value.shape, 2), value, {"total": total}, {})


class BothEndsEnv(CountdownEnv):
    """Terminates and is cut in one and the same step."""

    def _advance(self, action: int) -> Any:
        observation, reward, terminated, _, info = super()._advance(action)
        return observation, reward, terminated, terminated, info


def collect(
    env: Any, module: nn.Module, horizon: int, *, num_rollouts: int = 1, segment: int | None = None
) -> list[dict[str, Tensor]]:
    envs = make_vec_env(env)
    policy = Policy(module, envs.observation_space, envs.action_space)
    buffer = RolloutBuffer.for_env(policy, envs, horizon, bptt_horizon=segment)
    collector = RolloutCollector(envs, policy, buffer)
    rollouts = []
    for _ in range(num_rollouts):
        collector.collect()
        rollouts.append({name: column.clone() for name, column in buffer.columns.items()})
    envs.close()
    return rollouts


def advantages_of(columns: dict[str, Tensor], module: nn.Module, env: Any) -> list[float]:
    """One-step errors r + 0.5 V(s') - V(s) of the first row."""
    ppo = learner(
        Policy(module, env.observation_space, env.action_space), gamma=0.5, gae_lambda=0.0
    )
    found: list[float] = ppo.compute_advantages(columns)["advantages"][:, 0].tolist()
    return found


def row(column: Tensor) -> Sequence[float]:
    values: list[float] = column[:, 0].tolist()
    return values


# CountdownEnv: the observation counts steps, and the k-th step earns k.


def test_truncation_bootstraps_from_the_final_observation_when_a_time_limit_ends_an_episode() -> (
    None
):
    env = CountdownEnv(3, truncate=True)
    (columns,) = collect(env, ObsAsValue(), 5)
    assert row(columns["values"]) == [0, 1, 2, 0, 1]
    # the third step reached 3, though the observation after it is the 0 of a new episode
    assert row(columns["next_values"]) == [1, 2, 3, 1, 2]
    expected = [1 + 0.5 * 1 - 0, 2 + 0.5 * 2 - 1, 3 + 0.5 * 3 - 2, 1 + 0.5 * 1 - 0, 2 + 0.5 * 2 - 1]
    assert advantages_of(columns, ObsAsValue(), env) == expected


def test_termination_does_not_bootstrap_when_an_episode_ends_by_itself() -> None:
    env = CountdownEnv(3)
    (columns,) = collect(env, ObsAsValue(), 5)
    expected = [1 + 0.5 * 1 - 0, 2 + 0.5 * 2 - 1, 3 - 2, 1 + 0.5 * 1 - 0, 2 + 0.5 * 2 - 1]
    assert advantages_of(columns, ObsAsValue(), env) == expected


def test_termination_wins_when_an_episode_ends_both_ways() -> None:
    env = BothEndsEnv(3)
    (columns,) = collect(env, ObsAsValue(), 3)
    assert row(columns["terminated"]) == row(columns["truncated"]) == [False, False, True]
    assert advantages_of(columns, ObsAsValue(), env)[-1] == 3 - 2


@pytest.mark.parametrize(("truncate", "reached"), [(True, 3.0), (False, 0.0)])
def test_last_row_follows_the_same_rules_when_an_episode_ends_in_it(
    truncate: bool, reached: float
) -> None:
    env = CountdownEnv(3, truncate=truncate)
    (columns,) = collect(env, ObsAsValue(), 3)
    assert advantages_of(columns, ObsAsValue(), env)[-1] == 3 + 0.5 * reached - 2


def test_last_row_bootstraps_from_the_observation_after_it_when_the_episode_goes_on() -> None:
    env = CountdownEnv(9)
    first, second = collect(env, ObsAsValue(), 4, num_rollouts=2)
    assert row(first["next_values"]) == [1, 2, 3, 4]
    assert row(second["values"])[0] == 4
    assert advantages_of(first, ObsAsValue(), env)[-1] == 4 + 0.5 * 4 - 3


@pytest.mark.parametrize("segment", [6, 2, 1])
def test_final_observation_is_valued_in_the_state_before_the_reset_when_recurrent(
    segment: int,
) -> None:
    env = CountdownEnv(4, truncate=True)
    first, second = collect(env, SumAsValue(), 6, num_rollouts=2, segment=segment)
    assert row(first["values"]) == [0, 1, 3, 6, 0, 1]
    # 0 + 1 + 2 + 3 + 4 at the cut; the last row ends in the middle of an episode
    assert row(first["next_values"]) == [1, 3, 6, 10, 1, 3]
    assert row(second["values"]) == [3, 6, 0, 1, 3, 6]
    assert row(second["next_values"]) == [6, 10, 1, 3, 6, 10]
    states = first["recurrent_state/total"][:, 0].tolist()
    assert states == {6: [0], 2: [0, 1, 6], 1: [0, 0, 1, 3, 6, 0]}[segment]


# A vector environment of gymnasium that spends a step on each reset.


def next_step_env() -> Any:
    factories = [lambda: CountdownEnv(3, truncate=True), lambda: CountdownEnv(3, truncate=True)]
    return SyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_reset_only_steps_are_invalid_when_a_vector_env_resets_in_the_next_step() -> None:
    first, second = collect(next_step_env(), ObsAsValue(), 6, num_rollouts=2)
    assert row(first["valid"]) == [True, True, True, False, True, True]
    assert row(second["valid"]) == [True, False, True, True, True, False]
    assert row(first["rewards"]) == [1, 2, 3, 0, 1, 2]
    assert row(first["episode_starts"]) == [True, False, False, False, True, False]


@pytest.mark.parametrize("module", [ObsAsValue, SumAsValue])
def test_valid_rows_are_the_same_when_resets_cost_a_step_or_not(module: type[nn.Module]) -> None:
    serial = collect(CountdownEnv(3, truncate=True), module(), 6)[0]
    stepping = collect(next_step_env(), module(), 8)[0]
    taken = stepping["valid"][:, 0]
    for name in ("observations", "rewards", "truncated", "values", "next_values", "episode_starts"):
        assert torch.equal(stepping[name][taken][:, 0], serial[name][:, 0]), name
    env = CountdownEnv(3, truncate=True)
    estimates = [advantages_of(columns, module(), env) for columns in (stepping, serial)]
    kept = [a for a, valid in zip(estimates[0], taken.tolist(), strict=True) if valid]
    assert kept == estimates[1]


# Advantages.


def cartpole_rollout(core: Any = "none") -> tuple[Policy, dict[str, Tensor]]:
    """A float64 policy and a rollout of it, with both kinds of ends; segments of 4."""
    envs = make_vec_env("CartPole-v1", num_envs=3, env_kwargs={"max_episode_steps": 12})
    agent = AgentConfig(core=core, hidden_size=16)
    policy = make_policy(envs.observation_space, envs.action_space, agent, seed=1).double()
    buffer = RolloutBuffer.for_env(policy, envs, 16, bptt_horizon=4)
    RolloutCollector(envs, policy, buffer, seed=8).collect()
    envs.close()
    return policy, {name: column.clone() for name, column in buffer.columns.items()}


def learner(policy: Policy, **settings: Any) -> PPOOptimizer:
    optimizer = make_optimizer(policy.parameters(), OptimizerConfig(learning_rate=0.01))
    return PPOOptimizer(policy, optimizer, "cpu", PPOConfig(**settings))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_vtrace_targets_are_lambda_returns_when_the_ratio_is_one(core: Any) -> None:
    policy, columns = cartpole_rollout(core)
    found = learner(policy, advantage_estimator="vtrace").compute_advantages(columns)
    ended = columns["terminated"] | columns["truncated"]
    assert columns["terminated"].any() or columns["truncated"].any()
    parts = [columns[name] for name in ("rewards", "values", "next_values", "terminated")]
    expected = gae(*parts, ended, gamma=0.99, gae_lambda=0.95) + columns["values"]
    torch.testing.assert_close(found["returns"], expected, rtol=0, atol=1e-9)
    plain = learner(policy).compute_advantages(columns)
    torch.testing.assert_close(plain["returns"], expected, rtol=0, atol=1e-9)


def test_vtrace_clips_when_data_is_stale() -> None:
    policy, columns = cartpole_rollout()
    fresh = columns
    rare = torch.ones_like(fresh["values"])  # ratio e
    common = -rare  # ratio 1 / e
    clipped = learner(policy, advantage_estimator="vtrace")
    wide = learner(policy, advantage_estimator="vtrace", vtrace_rho_clip=9.0, vtrace_c_clip=9.0)
    expected = clipped.compute_advantages(fresh)["returns"]
    torch.testing.assert_close(clipped.compute_advantages(fresh, rare)["returns"], expected)
    for ppo, ratios in ((wide, rare), (clipped, common)):
        found = ppo.compute_advantages(fresh, ratios)["returns"]
        assert float((found - expected).abs().max()) > 0.1
    last = {k: v[-1:] for k, v in fresh.items()}
    error = last["rewards"] + 0.99 * last["next_values"] * ~last["terminated"] - last["values"]
    found = clipped.compute_advantages(last, common[-1:])["advantages"]
    torch.testing.assert_close(found, error / torch.e)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_ratios_start_at_one_when_vtrace_learns_from_stale_data(core: str) -> None:
    settings = {"core": core, "horizon": 32, "num_envs": 4, "learning_rate": 1e-9}
    vtrace = {"advantage_estimator": "vtrace", "target_kl": 1e-3}
    with PPOTrainer(None, "CartPole-v1", **settings, **vtrace) as trainer:
        data = trainer.collect_rollouts()
        with torch.no_grad():
            for parameter in trainer.policy.parameters():
                parameter.mul_(1.5).add_(0.05)
        metrics = trainer.learn(data)
    # importance weights are in the advantages: the KL is that of this update, not of the staleness
    assert metrics["approx_kl"] < 1e-5
    assert metrics["kl_stopped"] == 0.0


def test_vtrace_weights_each_error_once_when_one_step_is_stale() -> None:
    policy, columns = cartpole_rollout()
    ppo = learner(policy, advantage_estimator="vtrace", normalize_advantages=False)
    stale = columns | {"log_probs": columns["log_probs"] + 1.0}
    corrected = dict(stale)
    ppo._correct(corrected)
    torch.testing.assert_close(corrected["log_probs"], columns["log_probs"])
    ratios = columns["log_probs"] - stale["log_probs"]
    expected = ppo.compute_advantages(columns, ratios)["advantages"]
    torch.testing.assert_close(corrected["advantages"], expected)


def test_vtrace_is_computed_anew_when_the_data_brings_advantages() -> None:
    policy, columns = cartpole_rollout()
    other = copy.deepcopy(policy)
    bare = columns
    learner(policy, advantage_estimator="vtrace").update(bare)
    wrong = bare | {"advantages": bare["values"] * 0, "returns": bare["values"] * 0}
    learner(other, advantage_estimator="vtrace").update(wrong)
    assert other.parameter_hash() == policy.parameter_hash()


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_earlier_steps_do_not_look_into_invalid_ones_when_advantages_are_computed(
    estimator: Any,
) -> None:
    policy, columns = cartpole_rollout()
    columns["valid"][9:, 1] = False
    ppo = learner(policy, advantage_estimator=estimator)
    expected = ppo.compute_advantages(columns)["advantages"]
    columns["rewards"][9:, 1] = 1e6
    found = ppo.compute_advantages(columns)["advantages"]
    assert torch.equal(found[columns["valid"]], expected[columns["valid"]])
    # the last valid step bootstraps from what it reached
    last = {name: column[8, 1] for name, column in columns.items()}
    reached = last["next_values"] * ~last["terminated"]
    if estimator == "gae":
        assert found[8, 1] == pytest.approx(last["rewards"] + 0.99 * reached - last["values"])


# Storage.


class PixelEnv(gymnasium.Env[Any, Any]):
    """Frames of one grey level, a level brighter each step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed, options=options)
        self.level = 250
        return np.full((4, 4, 3), self.level, np.uint8), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Any]:
        del action
        self.level += 1
        return np.full((4, 4, 3), self.level, np.uint8), 0.0, False, self.level == 255, {}


def test_pixels_stay_bytes_when_they_are_stored() -> None:
    envs = make_vec_env(PixelEnv, num_envs=2)
    policy = make_policy(envs.observation_space, envs.action_space)
    buffer = RolloutBuffer.for_env(policy, envs, 3)
    RolloutCollector(envs, policy, buffer).collect()
    column = buffer.columns["observations"]
    assert column.dtype == torch.uint8
    assert column.shape == (3, 2, 4, 4, 3)
    assert column[:, 0, 0, 0, 0].tolist() == [250, 251, 252]


@pytest.mark.parametrize("normalize", [False, True])
def test_completed_columns_agree_when_the_actor_produced_values_or_not(normalize: bool) -> None:
    rollouts = []
    for actor in ("eager", "numpy"):
        envs = make_vec_env("CartPole-v1", num_envs=3, env_kwargs={"max_episode_steps": 20})
        agent = AgentConfig(normalize_observations=normalize, normalize_returns=normalize)
        policy = make_policy(envs.observation_space, envs.action_space, agent, seed=1)
        buffer = RolloutBuffer.for_env(policy, envs, 64)
        collector = RolloutCollector(envs, policy, buffer, actor=actor)
        assert collector.actor_kind == actor
        for _ in range(2):
            collector.collect()
            policy.update_normalizers(buffer.columns | {"returns": buffer.columns["rewards"]})
        collector.collect()
        rollouts.append({name: column.clone() for name, column in buffer.columns.items()})
        envs.close()
    eager, numpy = rollouts
    assert eager["terminated"].any()
    assert eager["truncated"].any()
    assert eager.keys() == numpy.keys()
    for name, column in eager.items():
        torch.testing.assert_close(column, numpy[name], rtol=1e-5, atol=1e-5)


def test_many_rows_are_valued_in_parts_when_they_exceed_one_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollouts = []
    for limit in (8192, 3):
        monkeypatch.setattr("metta.rl.collect.buffer.ROWS_PER_FORWARD", limit)
        envs = make_vec_env("CartPole-v1", num_envs=2)
        policy = make_policy(envs.observation_space, envs.action_space)
        buffer = RolloutBuffer.for_env(policy, envs, 16)
        RolloutCollector(envs, policy, buffer, actor="numpy").collect()
        rollouts.append(buffer.columns)
        envs.close()
    for name, column in rollouts[0].items():
        torch.testing.assert_close(rollouts[1][name], column, rtol=1e-6, atol=1e-6)


def test_segments_that_do_not_divide_the_horizon_are_refused_when_a_buffer_is_made() -> None:
    policy = Policy(SumAsValue(), CountdownEnv(3).observation_space, spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"bptt_horizon=3 .* horizon of 8.*try horizon=6"):
        RolloutBuffer(policy, 2, 8, bptt_horizon=3)
