"""Fused rollouts equal those that go through Python, to the bit."""

from typing import Any

import numpy as np
import pytest
import torch

from metta import PPOTrainer
from metta.agent.actors.c_program import native_available as actors_available
from metta.agent.factory import make_policy
from metta.curriculum import Curriculum
from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.cartpole import CartPoleVecEnv
from metta.envs.cartpole import native_available as carts_available
from metta.envs.factory import make_vec_env
from metta.envs.grid import GridVecEnv
from metta.envs.grid import native_available as grid_available
from metta.envs.vec_env import FusedVecEnv, RolloutArrays, VecEnv, fused_env_of
from metta.errors import EnvError
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.update_log import LOSS_NAMES
from metta.train.train_config import AgentConfig, CurriculumConfig

pytestmark = pytest.mark.skipif(
    not (actors_available() and carts_available() and grid_available()),
    reason="the C kernels were not built (no C compiler?)",
)
HORIZON = 24


class Plain(VecEnvWrapper):
    """Nothing but the steps of the environment below."""

    def __init__(self, inner: VecEnv) -> None:
        super().__init__(inner)
        self.observation_space, self.obs_spec = inner.observation_space, inner.obs_spec
        self.num_rows = inner.num_rows
        self.reset, self.send, self.recv = inner.reset, inner.send, inner.recv


TASKS = {"short": {"horizon": 9}, "long": {"horizon": 14, "goal": 2}}
WORLDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "carts": ("metta/cartpole", {"max_episode_steps": 15}),
    "two groups of carts": ("metta/cartpole", {"max_episode_steps": 15, "num_groups": 2}),
    "grid": ("grid/gather", {"horizon": 10}),
    "two groups of worlds": ("grid/gather", {"horizon": 10, "num_groups": 2}),
    "curriculum": ("curriculum", {}),
}


def curriculum() -> Curriculum:
    return Curriculum(CurriculumConfig(kind="learning_progress", env="grid/gather", tasks=TASKS))


def world(name: str, num_envs: int = 6) -> VecEnv:
    env, options = WORLDS[name]
    kwargs = {key: value for key, value in options.items() if key != "num_groups"}
    num_groups = options.get("num_groups", 1)
    env = curriculum().tasks if env == "curriculum" else env
    return make_vec_env(env, num_envs=num_envs, num_groups=num_groups, env_kwargs=kwargs)


def collector_of(env: VecEnv, name: str, actor: str = "c", **agent: Any) -> RolloutCollector:
    config = AgentConfig(hidden_size=16, **agent)
    policy = make_policy(env.observation_space, env.action_space, config)
    with torch.no_grad():
        policy.module.heads.actor.weight.mul_(100)
    buffer = RolloutBuffer.for_env(policy, env, HORIZON)
    feed = curriculum() if name == "curriculum" else None
    return RolloutCollector(env, policy, buffer, actor=actor, curriculum=feed)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("normalised", [False, True])
def test_buffers_are_equal_to_the_bit_when_rollouts_are_fused(name: str, normalised: bool) -> None:
    agent = {"normalize_observations": normalised, "normalize_returns": normalised}
    fused = collector_of(world(name), name, **agent)
    plain = collector_of(Plain(world(name)), name, **agent)
    assert fused._fused_env() is fused.vec_env
    assert plain._fused_env() is None
    num_cut = 0
    for _ in range(4):
        stats, steps = fused.collect()
        assert (stats, steps) == plain.collect()
        for key, column in plain.experience.columns.items():
            assert torch.equal(fused.experience.columns[key], column), key
        assert str(fused.state_dict()) == str(plain.state_dict())
        num_cut += int(fused.experience.truncated.sum())
        for side in (fused, plain):
            side.policy.update_normalizers(
                side.experience.columns | {"returns": side.experience.columns["values"]}
            )
    assert num_cut > 0


def trained(env: VecEnv, **options: Any) -> tuple[str, str]:
    with PPOTrainer(None, env, n_steps=16, n_epochs=2, hidden_size=16, **options) as trainer:
        trainer.train(5 * 16 * env.num_rows)
        return trainer.policy.parameter_hash(), trainer.collector.actor_kind


@pytest.mark.parametrize("name", ["carts", "grid"])
def test_weights_are_equal_to_the_bit_when_whole_runs_are_fused(name: str) -> None:
    fused, plain = trained(world(name)), trained(Plain(world(name)))
    assert fused == plain
    assert fused[1] == "c"


def test_nothing_is_laid_over_the_steps_when_rollouts_are_fused() -> None:
    class Quieter(CartPoleVecEnv):
        def recv(self, group, obs_out):
            result = super().recv(group, obs_out)
            result.rewards[:] = 0.0
            return result

    class Renamed(CartPoleVecEnv):
        pass

    env = CartPoleVecEnv(4)
    assert fused_env_of(env) is env
    assert fused_env_of(Renamed(4)) is not None
    assert fused_env_of(Quieter(4)) is None
    assert fused_env_of(Plain(env)) is None
    assert not isinstance(Plain(env), FusedVecEnv)
    assert not hasattr(Plain(env), "run_steps")
    assert fused_env_of(CartPoleVecEnv(4, native=False)) is None
    assert fused_env_of(make_vec_env("CartPole-v1")) is None
    env.recv = env.recv  # type: ignore[method-assign]  # as a test double would
    assert fused_env_of(env) is None


def test_rollouts_go_through_python_when_the_actor_is_another() -> None:
    for actor in ("eager", "traced", "numpy"):
        collector = collector_of(world("carts"), "carts", actor=actor)
        assert collector._fused_env() is None
        collector.collect()


def test_nothing_is_half_done_when_a_fused_rollout_is_refused() -> None:
    collector = collector_of(world("grid"), "grid")
    env = collector.vec_env
    assert isinstance(env, GridVecEnv)
    env.prepare_restore()
    collector.collect()
    before, state = env.state_dict(), str(collector.state_dict())
    env.next_tasks[2] = 7
    with pytest.raises(EnvError, match=r"next_tasks\[2\] is 7, but tasks have the numbers 0 to 0"):
        collector.collect()
    env.next_tasks[2] = 0
    after = env.state_dict()
    assert all(np.array_equal(after[key], before[key]) for key in before)
    assert str(collector.state_dict()) == state
    other = collector_of(world("grid"), "grid")
    other.collect()
    assert collector.collect() == other.collect()  # as if nothing had happened
    for key, column in other.experience.columns.items():
        assert torch.equal(collector.experience.columns[key], column)


@pytest.mark.parametrize("name", ["carts", "grid"])
def test_arrays_are_refused_when_they_do_not_fit(name: str) -> None:
    collector = collector_of(world(name), name)
    collector.collect()
    env, buffer = collector.vec_env, collector.experience
    assert isinstance(env, FusedVecEnv)
    size = buffer.action_spec.num_params
    noise = np.zeros((HORIZON, buffer.num_rows, size), np.float32)
    arrays = buffer.rollout_arrays(noise)
    capsule = collector.actor.fused_actor
    for change in ({"noise": noise[1:]}, {"rewards": arrays.rewards.astype(float)},
                   {"obs": arrays.obs[:, ::2]}, {"starts": arrays.starts[1:]}):  # fmt: skip
        fields = {field: getattr(arrays, field) for field in RolloutArrays.__slots__}
        with pytest.raises(ValueError, match="than this kernel needs"):
            env.run_steps(capsule, RolloutArrays(**fields | change), 0)
    stranger = collector_of(world("grid" if name == "carts" else "carts"), "carts").actor
    with pytest.raises(ValueError, match="the actor is for"):
        env.run_steps(stranger.fused_actor, arrays, 0)
    with pytest.raises((ValueError, TypeError)):
        env.run_steps(object(), arrays, 0)
    collector.collect()


@pytest.mark.parametrize("first", [-1, -100_000, HORIZON + 1])
@pytest.mark.parametrize("env_id", ["metta/cartpole", "grid/gather"])
def test_steps_that_do_not_exist_are_refused(env_id: str, first: int) -> None:
    env = make_vec_env(env_id, num_envs=2)
    policy = make_policy(env.observation_space, env.action_space, AgentConfig(hidden_size=8))
    buffer = RolloutBuffer.for_env(policy, env, HORIZON)
    collector = RolloutCollector(env, policy, buffer)
    collector.collect()
    size = policy.action_spec.noise_dim
    arrays = buffer.rollout_arrays(np.zeros((HORIZON, env.num_rows, size), np.float32))
    fused = fused_env_of(env)
    assert fused is not None
    with pytest.raises(ValueError, match="is not one of the 24 steps"):
        fused.run_steps(collector.actor.fused_actor, arrays, first)


@pytest.mark.parametrize("env", ["CartPole-v1", "metta/cartpole", "grid/gather"])
def test_losses_agree_with_the_eager_actor_to_1e_5_over_twenty_updates(env: str) -> None:
    def losses(actor: str) -> tuple[dict[str, list[float]], bool]:
        settings: dict[str, Any] = {"num_envs": 4, "n_steps": 16, "hidden_size": 32, "seed": 3}
        settings |= {"n_epochs": 2, "num_minibatches": 2}
        options = {"actor": actor, "driver": "eager", "verbose": False}
        with PPOTrainer(None, env, **settings, **options) as trainer:
            history = trainer.train(20 * 16 * trainer.env.num_rows)
            assert trainer.plan.actor == actor
            return history, trainer.collector._fused_env() is not None

    wanted, _ = losses("eager")
    for actor in ("traced", "numpy", "c"):
        found, is_fused = losses(actor)
        assert is_fused == (actor == "c" and env != "CartPole-v1")
        assert len(found["policy_loss"]) == 20
        for name in LOSS_NAMES:
            assert found[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-5)
