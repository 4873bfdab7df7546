"""Collection: what is stored is what happened, and nothing but the environment moves."""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from metta.agent.actors.protocol import Actor
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.rows.row_spec import episode_seed
from metta.envs.toy import BufferReuseEnv, CorridorEnv, CountdownEnv
from metta.errors import EnvError, MettaWarning
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig


def collector_of(
    env: Any, horizon: int = 8, *, agent: AgentConfig | None = None, **options: Any
) -> RolloutCollector:
    """A collector with a policy and a buffer for an environment."""
    split = {k: options.pop(k) for k in ("num_envs", "num_groups", "env_kwargs") if k in options}
    envs = make_vec_env(env, **split)
    policy = make_policy(envs.observation_space, envs.action_space, agent, seed=2)
    buffer = RolloutBuffer.for_env(policy, envs, horizon, bptt_horizon=4)
    return RolloutCollector(envs, policy, buffer, **options)


def clones(collector: RolloutCollector) -> dict[str, Tensor]:
    return {name: column.clone() for name, column in collector.experience.columns.items()}


# Alignment.


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(
    ("env_id", "limit"), [("CartPole-v1", 18), ("Pendulum-v1", 7), ("MountainCar-v0", 9)]
)
def test_rows_hold_what_happened_when_an_env_is_stepped_by_hand(
    env_id: str, limit: int, num_groups: int
) -> None:
    options = {"max_episode_steps": limit}
    collector = collector_of(
        env_id, 32, num_envs=4, num_groups=num_groups, env_kwargs=options, seed=9
    )
    collector.collect()
    first = clones(collector)
    collector.collect()
    second = clones(collector)
    joined = {name: torch.cat([first[name], second[name]]) for name in first}
    assert (joined["terminated"] | joined["truncated"]).any()
    for row, seed in enumerate(row_seeds(9, 4)):
        env = gymnasium.make(env_id, **options)
        observation, _ = env.reset(seed=seed)
        starts, episode = True, 0
        for step in range(64):
            kept = {name: column[step, row] for name, column in joined.items()}
            np.testing.assert_array_equal(kept["observations"].numpy(), observation)
            assert bool(kept["episode_starts"]) == starts
            action = collector.policy.action_spec.to_env(kept["actions"][None].numpy())[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            assert float(kept["rewards"]) == np.float32(reward)
            assert bool(kept["terminated"]) == terminated
            assert bool(kept["truncated"]) == truncated
            starts = terminated or truncated
            if starts:
                episode += 1
                observation, _ = env.reset(seed=episode_seed(seed, episode))
        env.close()


def test_stored_actions_are_unclipped_when_the_env_gets_them_clipped() -> None:
    collector = collector_of("Pendulum-v1", 64, num_envs=2)
    collector.collect()
    actions = collector.experience.columns["actions"]
    assert float(actions.abs().max()) > 2.0  # Pendulum's bound
    assert collector.policy.action_spec.to_env(actions[:, 0].numpy()).max() <= 2.0


# Nothing else moves.


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_policy_and_optimizer_keep_every_bit_when_a_rollout_is_collected(core: Any) -> None:
    agent = AgentConfig(core=core, normalize_observations=True, normalize_returns=True)
    collector = collector_of("CartPole-v1", 16, num_envs=2, agent=agent)
    policy = collector.policy
    optimizer = make_optimizer(policy.parameters(), OptimizerConfig())
    ppo = PPOOptimizer(policy, optimizer, "cpu", PPOConfig())
    collector.collect()
    ppo.update(collector.experience)
    policy.update_normalizers(
        collector.experience.columns | ppo.compute_advantages(collector.experience.columns)
    )
    policy.train()
    before = digest_of([policy.state_dict(), optimizer.state_dict(), ppo.state_dict()])
    gradients = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    collector.collect()
    assert digest_of([policy.state_dict(), optimizer.state_dict(), ppo.state_dict()]) == before
    after = [p.grad for p in policy.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(gradients, after, strict=True))
    assert policy.training


def test_cloned_columns_stay_when_another_rollout_is_collected() -> None:
    collector = collector_of("CartPole-v1", num_envs=3, agent=AgentConfig(core="gru"))
    collector.collect()
    kept = clones(collector)
    before = digest_of(kept)
    collector.collect()
    assert digest_of(kept) == before
    assert digest_of(clones(collector)) != before


def test_observations_are_copied_when_an_env_reuses_its_buffer() -> None:
    collector = collector_of(lambda: BufferReuseEnv(4), 8, num_envs=2)
    collector.collect()
    columns = collector.experience.columns
    assert columns["observations"][:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    numbers = columns["observations"][:, 0, 0]
    assert len(set(numbers[:4].tolist())) == len(set(numbers[4:].tolist())) == 1
    assert numbers[0] != numbers[4]
    # the observation before the reset, not the one that overwrote it
    final = torch.tensor([[[float(numbers[0]), 4.0]]])
    value = collector.policy({collector.policy.obs_spec.leaves[0].key: final}).value.detach()
    torch.testing.assert_close(columns["next_values"][3, 0], value[0, 0])


class ReusedArrays:
    """A `VecEnv` that hands out one and the same arrays in every step, as it may."""

    num_rows, num_groups, mask_size, num_resets = 1, 1, 0, 0

    def __init__(self) -> None:
        self.inner = make_vec_env(lambda: CountdownEnv(3, truncate=True))
        self.observation_space = self.inner.observation_space
        self.action_space, self.obs_spec = self.inner.action_space, self.inner.obs_spec
        self.final = {leaf.key: np.zeros((1, 1), np.float32) for leaf in self.obs_spec.leaves}

    def reset(self, seeds: Any, obs_out: Any) -> Any:
        return self.inner.reset(seeds, obs_out)

    def send(self, group: int, actions: np.ndarray) -> None:
        for array in self.final.values():
            array.fill(-100.0)
        self.inner.send(group, actions)

    def recv(self, group: int, obs_out: Any) -> Any:
        result = self.inner.recv(group, obs_out)
        if result.final is not None:
            for key, array in self.final.items():
                array[...] = result.final.obs[key]
            result.final.obs = self.final
        return result

    def close(self) -> None:
        self.inner.close()


def test_final_observations_are_copied_when_a_vec_env_reuses_its_arrays() -> None:
    one, other = collector_of(ReusedArrays()), collector_of(lambda: CountdownEnv(3, truncate=True))
    one.collect()
    other.collect()
    assert torch.equal(
        one.experience.columns["next_values"], other.experience.columns["next_values"]
    )


# Noise.


class RecordingActor(Actor):
    """Keeps the noise that it is given."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.kind, self.produces = actor, "recording", actor.produces
        self.noise: list[np.ndarray] = []

    def refresh(self, policy: Policy) -> None:
        self.actor.refresh(policy)

    def act(self, obs: Mapping[str, np.ndarray], *rest: Any) -> Any:
        self.noise.append(rest[-1].copy())
        return self.actor.act(obs, *rest)


def noise_of_second_rollout(first_horizon: int, *, seed: int = 4, rank: int = 0) -> np.ndarray:
    collector = collector_of(CountdownEnv, first_horizon, num_envs=2, seed=seed, shard=rank)
    collector.collect()
    torch.rand(first_horizon)
    envs, policy = collector.vec_env, collector.policy
    collector.experience = RolloutBuffer.for_env(policy, envs, 8)
    collector.actor = RecordingActor(collector.actor)
    collector.collect()
    return np.stack(collector.actor.noise)


def test_noise_is_the_same_when_earlier_rollouts_were_different() -> None:
    expected = noise_of_second_rollout(8)
    assert np.array_equal(noise_of_second_rollout(3), expected)
    assert not np.array_equal(noise_of_second_rollout(8, seed=5), expected)
    assert not np.array_equal(noise_of_second_rollout(8, rank=1), expected)


def test_rollouts_use_new_noise_when_they_follow_each_other() -> None:
    collector = collector_of(CountdownEnv, 8, num_envs=2)
    collector.actor = RecordingActor(collector.actor)
    collector.collect()
    collector.collect()
    noise = np.stack(collector.actor.noise)
    assert len(np.unique(noise)) == noise.size


def test_a_loaded_collector_goes_on_when_environments_stand_at_the_same_place() -> None:
    agent = AgentConfig(core="lstm")
    one, other = (collector_of(lambda: CountdownEnv(5), num_envs=2, agent=agent) for _ in range(2))
    weights = {name: tensor.clone() for name, tensor in other.policy.state_dict().items()}
    with torch.no_grad():  # whatever the other did before must not matter
        for parameter in other.policy.parameters():
            parameter.mul_(1.5)
    for collector in (one, other):
        collector.collect()
    other.policy.load_state_dict(weights)
    other.load_state_dict(one.state_dict())
    stats = [collector.collect() for collector in (one, other)]
    assert stats[0] == stats[1]
    assert digest_of(clones(one)) == digest_of(clones(other))


def test_fresh_episodes_begin_when_environments_stand_elsewhere_than_the_loaded_state() -> None:
    limits = {"max_episode_steps": 100}
    one, other, third = (
        collector_of("CartPole-v1", 8, num_envs=2, env_kwargs=limits) for _ in range(3)
    )
    one.collect()
    first = clones(one)
    one.collect()
    saved = copy.deepcopy(one.state_dict())
    other.load_state_dict(saved)
    other.load_state_dict(saved)  # twice: the observations are still not these environments'
    assert digest_of(other.state_dict()) == digest_of(saved)
    third.collect()  # its environments stand somewhere, but not there
    third.load_state_dict(saved)
    for collector in (other, third):
        assert collector.num_rollouts == 2
        lengths = collector.collect()[0]["episode_length"]
        begun = clones(collector)
        assert begun["episode_starts"][0].all()
        assert not torch.equal(begun["observations"][0], first["observations"][0])
        assert all(length <= 8 for length in lengths)  # unfinished episodes count nowhere
        assert int(collector.meter.lengths.max()) <= 8
    assert digest_of(clones(other)) == digest_of(clones(third))
    collector.collect()
    assert not clones(collector)["episode_starts"][0].all()  # and from there they run on


def test_fresh_episodes_begin_when_they_are_asked_for() -> None:
    collector = collector_of("CartPole-v1", 8, num_envs=2)
    starts = []
    for _ in range(3):
        collector.resume_with_fresh_episodes()
        collector.collect()
        assert clones(collector)["episode_starts"][0].all()
        starts.append(clones(collector)["observations"][0])
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])
    assert collector.num_rollouts == 3


# Steps that only reset.


def test_phantom_steps_count_nowhere_when_a_vector_env_resets_in_the_next_step() -> None:
    factories = [lambda: CountdownEnv(3), lambda: CountdownEnv(3)]
    env = SyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)
    collector = collector_of(env, 10)
    stats, num_steps = collector.collect()
    # per row: 3 steps, a reset, 3 steps, a reset, 2 steps
    assert num_steps == 2 * 8
    assert stats["episode_return"] == [6.0] * 4
    assert stats["episode_length"] == [3.0] * 4
    assert stats["env/length"] == [3.0] * 4
    valid = collector.experience.columns["valid"]
    assert valid[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1]
    stats, num_steps = collector.collect()
    assert num_steps == 2 * 7  # 1 step, a reset, 3 steps, a reset, 3 steps, a reset
    assert stats["episode_return"] == [6.0] * 6


def test_episode_statistics_agree_with_the_env_when_it_reports_at_an_end() -> None:
    collector = collector_of(lambda: CorridorEnv(3, max_steps=6), 64, num_envs=3)
    stats, num_steps = collector.collect()
    assert num_steps == 64 * 3
    arrived = [position == 2 for position in stats["env/position"]]
    expected = [1.0 if yes else -0.1 for yes in arrived]
    steps_before = [-0.1 * (length - 1) for length in stats["episode_length"]]
    total = [a + b for a, b in zip(expected, steps_before, strict=True)]
    assert stats["episode_return"] == pytest.approx(total, abs=1e-5)


# What must not be learned from.


class BadEnv(gymnasium.Env[Any, Any]):
    """Gives NaN in its third step."""

    def __init__(self, where: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.where, self.steps = where, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed, options=options)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Any]:
        del action
        self.steps += 1
        bad = float("nan") if self.steps == 3 else 0.0
        observation = np.array([0.0, bad if self.where == "observation" else 0.0], np.float32)
        return observation, bad if self.where == "reward" else 0.0, False, False, {}


class Unchecked:
    """A `VecEnv` of somebody else's, which hands on whatever its rows give."""

    num_rows, num_groups, mask_size, num_resets = 2, 1, 0, 0

    def __init__(self, where: str) -> None:
        self.inner = make_vec_env([lambda: BadEnv("nowhere")] * 2)
        self.observation_space = self.inner.observation_space
        self.action_space, self.obs_spec = self.inner.action_space, self.inner.obs_spec
        self.where, self.steps = where, 0

    def reset(self, seeds: Any, obs_out: Any) -> Any:
        return self.inner.reset(seeds, obs_out)

    def send(self, group: int, actions: np.ndarray) -> None:
        self.inner.send(group, actions)

    def recv(self, group: int, obs_out: Any) -> Any:
        result = self.inner.recv(group, obs_out)
        self.steps += 1
        if self.steps == 3 and self.where == "reward":
            result.rewards[1] = np.nan
        if self.steps == 3 and self.where == "observation":
            next(iter(obs_out.values()))[1, 1] = np.inf
        return result

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_collection_stops_when_an_env_gives_nan(where: str) -> None:
    collector = collector_of([lambda: BadEnv("nowhere"), lambda: BadEnv(where)])
    before = collector.policy.parameter_hash()
    with pytest.raises(EnvError, match=rf"{where}.* of row 1 is nan at step 3"):
        collector.collect()
    assert collector.policy.parameter_hash() == before
    assert collector.experience.columns == {}  # there is nothing that an update could take


@pytest.mark.parametrize(("where", "step"), [("reward", 2), ("observation", 3)])
def test_collection_stops_when_an_unchecked_env_gives_nan(where: str, step: int) -> None:
    # rewards are counted by the step that earned them, observations by the step that sees them
    collector = collector_of(Unchecked(where))
    with pytest.raises(
        EnvError, match=rf"row 1 .*non-finite {where}.* at step {step} of rollout 0"
    ):
        collector.collect()
    assert collector.experience.columns == {}


def test_numbers_are_not_checked_again_when_the_env_says_that_it_has_done_so() -> None:
    env = Unchecked("reward")
    env.gives_finite = True
    collector = collector_of(env)
    collector.collect()
    assert collector.experience.columns["rewards"].isnan().sum() == 1


@pytest.mark.parametrize(("length", "num_episodes"), [(10_000, 0), (25, 3)])
def test_an_endless_env_is_named_once_when_no_episode_ends(
    length: int, num_episodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metta.rl.collect.collector._ENDLESS_STEPS", 10)
    collector = collector_of(lambda: CountdownEnv(length), 20)
    with pytest.warns(MettaWarning, match="no episode has ended in 20 steps"):
        collector.collect()
    for _ in range(3):  # warnings are errors here
        collector.collect()
    assert collector.meter.num_episodes == num_episodes


def test_nothing_is_said_when_episodes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metta.rl.collect.collector._ENDLESS_STEPS", 10)
    collector = collector_of(lambda: CountdownEnv(3), 20)
    collector.collect()
    assert collector.meter.num_episodes == 6


def test_rows_must_match_when_a_buffer_is_given() -> None:
    collector = collector_of(CountdownEnv, num_envs=2)
    with pytest.raises(EnvError, match="the buffer has 3 rows, the environment 2"):
        collector.experience = RolloutBuffer(collector.policy, 3, 8)
