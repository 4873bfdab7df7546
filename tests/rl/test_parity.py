"""One PPO update equals two others: a plain PyTorch one, and Stable-Baselines3's."""

import copy
import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from reference_ppo import ReferenceNet, ReferenceSettings, reference_update
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.seeding import numpy_generator
from metta.train.train_config import OptimizerConfig, PPOConfig

SEED = 3


def reference_names(policy: Policy) -> dict[str, str]:
    """The policy's parameter names -> the reference's (also Stable-Baselines3's order of layers)."""
    places = {
        "module.encoder.dense.0": "actor.0",
        "module.encoder.dense.2": "actor.2",
        "module.heads.actor": "actor.4",
        "module.critic_encoder.dense.0": "critic.0",
        "module.critic_encoder.dense.2": "critic.2",
        "module.heads.critic": "critic.4",
        "module.heads.log_std": "log_std",
    }
    names = {}
    for name, _ in policy.named_parameters():
        layer, _, kind = name.rpartition(".")
        names[name] = places[name] if name in places else f"{places[layer]}.{kind}"
    return names


def reference_of(policy: Policy) -> ReferenceNet:
    continuous = isinstance(policy.action_space, gymnasium.spaces.Box)
    num_inputs = policy.observation_space.shape[0]  # type: ignore[index]
    width = policy.action_space.shape[0] if continuous else policy.action_space.n
    net = ReferenceNet(num_inputs, int(width), continuous=continuous).double()
    weights = policy.state_dict()
    net.load_state_dict({new: weights[old] for old, new in reference_names(policy).items()})
    return net


def minibatch_indices(config: PPOConfig, batch: int, update: int) -> list[np.ndarray]:
    generator = numpy_generator(SEED, "minibatch", epoch=update)
    passes = [generator.permutation(batch) for _ in range(config.update_epochs)]
    return [part for order in passes for part in np.array_split(order, config.num_minibatches)]


@functools.cache
def rollout_of(env_id: str, max_episode_steps: int) -> tuple[Policy, dict[str, Tensor]]:
    """A float64 policy and 96 steps of it, with terminated and (or) truncated episodes."""
    envs = make_vec_env(env_id, num_envs=3, env_kwargs={"max_episode_steps": max_episode_steps})
    policy = make_policy(envs.observation_space, envs.action_space, seed=SEED).double()
    buffer = RolloutBuffer.for_env(policy, envs, 32)
    RolloutCollector(envs, policy, buffer, seed=SEED).collect()
    envs.close()
    return policy, {name: column.clone() for name, column in buffer.columns.items()}


TORCH_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def torch_optimizer(net: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        options["momentum"] = config.momentum
    else:
        options |= {"betas": (config.beta1, config.beta2), "eps": config.eps}
    return TORCH_OPTIMIZERS[config.name](net.parameters(), **options)


def settings_of(config: PPOConfig) -> ReferenceSettings:
    return ReferenceSettings(
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip=config.clip_coef,
        value_clip=config.vf_clip_coef,
        value_weight=config.vf_coef,
        entropy_weight=config.ent_coef,
        max_grad_norm=config.max_grad_norm,
    )


ADAM = OptimizerConfig(learning_rate=0.01)
CASES = {
    "value clip": (ADAM, {"vf_clip_coef": 0.2}),
    "no gradient clip": (ADAM, {"max_grad_norm": None}),
    "uneven minibatches": (ADAM, {"num_minibatches": 7}),
    "one minibatch": (ADAM, {"num_minibatches": 1, "update_epochs": 8}),
    "accumulation": (ADAM, {"gradient_accumulation": 3}),
    "adam decay": (OptimizerConfig(learning_rate=0.01, weight_decay=0.01), {}),
    "adamw": (OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.01), {}),
    "sgd": (OptimizerConfig(name="sgd", learning_rate=0.5, momentum=0.9, weight_decay=0.01), {}),
}


def assert_updates_agree(
    policy: Policy,
    rollout: dict[str, Tensor],
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    net: ReferenceNet,
    config: PPOConfig,
) -> None:
    ppo = PPOOptimizer(policy, optimizers[0], "cpu", config, seed=SEED)
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    for update in range(2):  # twice, so that the optimizer's own state counts
        found = ppo.update(rollout)
        indices = minibatch_indices(config, rollout["values"].numel(), update)
        expected = reference_update(net, optimizers[1], rollout, indices, settings_of(config))
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, abs=1e-9), name
    # the settings of the comparison did something
    assert found["clipfrac"] > 0
    assert config.max_grad_norm is None or found["grad_norm"] > config.max_grad_norm
    others = dict(net.named_parameters())
    for name, parameter in policy.named_parameters():
        assert not torch.equal(parameter, before[name])
        other = others[reference_names(policy)[name]]
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-9)


BASE = {
    "update_epochs": 3,
    "num_minibatches": 4,
    "clip_coef": 0.02,
    "ent_coef": 0.02,
    "vf_coef": 0.1,
    "gae_lambda": 0.9,
    "max_grad_norm": 0.1,
}
ENVS = [("CartPole-v1", 20), ("Pendulum-v1", 12)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("env_id", "limit"), ENVS)
def test_update_equals_plain_pytorch_when_data_and_minibatches_are_the_same(
    env_id: str, limit: int, case: str
) -> None:
    policy, rollout = copy.deepcopy(rollout_of(env_id, limit))
    chosen, changes = CASES[case]
    net = reference_of(policy)
    optimizers = make_optimizer(policy.parameters(), chosen), torch_optimizer(net, chosen)
    assert_updates_agree(policy, rollout, optimizers, net, PPOConfig(**{**BASE, **changes}))


@pytest.mark.parametrize(("env_id", "limit"), ENVS)
def test_update_equals_plain_pytorch_when_the_optimizer_is_torchs_own(
    env_id: str, limit: int
) -> None:
    policy, rollout = copy.deepcopy(rollout_of(env_id, limit))
    net = reference_of(policy)
    optimizers = torch_optimizer(policy, ADAM), torch_optimizer(net, ADAM)
    assert_updates_agree(policy, rollout, optimizers, net, PPOConfig(**BASE, vf_clip_coef=0.2))


def test_stored_numbers_equal_the_reference_when_a_rollout_was_collected() -> None:
    policy, rollout = rollout_of("Pendulum-v1", 12)
    with torch.no_grad():
        log_probs, _, values = reference_of(policy).judge(
            rollout["observations"].double(), rollout["actions"]
        )
    assert float((log_probs - rollout["log_probs"]).abs().max()) < 1e-12
    assert float((values - rollout["values"]).abs().max()) < 1e-12


# Stable-Baselines3.


def sb3_after_a_rollout(env_id: str, *, num_minibatches: int, num_epochs: int) -> Any:
    sb3 = pytest.importorskip("stable_baselines3")
    envs = pytest.importorskip("stable_baselines3.common.env_util").make_vec_env(
        env_id, n_envs=4, seed=0, env_kwargs={"max_episode_steps": 30}
    )
    towers = {"pi": [64, 64], "vf": [64, 64]}
    model = sb3.PPO(
        "MlpPolicy",
        envs,
        n_steps=64,
        batch_size=256 // num_minibatches,
        n_epochs=num_epochs,
        learning_rate=1e-3,
        ent_coef=0.01,
        clip_range=0.1,
        policy_kwargs={"net_arch": towers, "activation_fn": nn.Tanh},
        device="cpu",
        seed=0,
    )
    _, callback = model._setup_learn(256)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 64)
    return model


def policy_like_sb3(model: Any) -> Policy:
    policy = make_policy(model.observation_space, model.action_space)
    layers = {
        "actor.0": "mlp_extractor.policy_net.0",
        "actor.2": "mlp_extractor.policy_net.2",
        "actor.4": "action_net",
        "critic.0": "mlp_extractor.value_net.0",
        "critic.2": "mlp_extractor.value_net.2",
        "critic.4": "value_net",
    }
    weights = dict(model.policy.named_parameters())
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            layer, _, kind = reference_names(policy)[name].rpartition(".")
            parameter.copy_(weights[f"{layers[layer]}.{kind}" if layer else kind])
    return policy


def columns_of_sb3(model: Any) -> dict[str, Tensor]:
    """Its buffer as columns; it has put the bootstrap of truncated episodes into their rewards."""
    buffer = model.rollout_buffer
    continuous = isinstance(model.action_space, gymnasium.spaces.Box)
    actions = torch.from_numpy(buffer.actions.copy())
    starts = np.concatenate([buffer.episode_starts[1:], model._last_episode_starts[None]])
    last = model.policy.predict_values(torch.from_numpy(model._last_obs)).detach().flatten()
    values = torch.from_numpy(buffer.values.copy())
    return {
        "observations": torch.from_numpy(buffer.observations.copy()),
        "actions": actions if continuous else actions.squeeze(-1).long(),
        "log_probs": torch.from_numpy(buffer.log_probs.copy()),
        "values": values,
        "rewards": torch.from_numpy(buffer.rewards.copy()),
        "next_values": torch.cat([values[1:], last[None]]),
        "terminated": torch.from_numpy(starts.astype(bool)),
        "truncated": torch.zeros(values.shape, dtype=torch.bool),
    }


@pytest.mark.parametrize(("num_minibatches", "num_epochs"), [(1, 6), (4, 3)])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_update_equals_stable_baselines3_when_settings_match(
    env_id: str, num_minibatches: int, num_epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sb3_after_a_rollout(env_id, num_minibatches=num_minibatches, num_epochs=num_epochs)
    policy, columns = policy_like_sb3(model), columns_of_sb3(model)
    assert columns["terminated"].any()
    # its value loss is the mean squared error, ours half of it
    config = PPOConfig(
        update_epochs=num_epochs,
        num_minibatches=num_minibatches,
        clip_coef=0.1,
        ent_coef=0.01,
        vf_coef=2 * model.vf_coef,
    )
    optimizer = make_optimizer(
        policy.parameters(),
        OptimizerConfig(learning_rate=1e-3, eps=model.policy.optimizer.defaults["eps"]),
    )
    ppo = PPOOptimizer(policy, optimizer, "cpu", config, seed=SEED)
    estimates = ppo.compute_advantages(columns)
    for name in ("advantages", "returns"):
        theirs = torch.from_numpy(getattr(model.rollout_buffer, name).copy())
        torch.testing.assert_close(estimates[name], theirs, rtol=1e-5, atol=1e-4)

    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    found = ppo.update(columns)
    orders = numpy_generator(SEED, "minibatch")
    # it counts samples row by row, we count them step by step
    theirs_from_ours = np.arange(256).reshape(4, 64).T.ravel()
    monkeypatch.setattr(np.random, "permutation", lambda n: theirs_from_ours[orders.permutation(n)])
    model.train()

    logged = model.logger.name_to_value
    assert found["policy_loss"] == pytest.approx(logged["train/policy_gradient_loss"], abs=1e-4)
    assert 2 * found["value_loss"] == pytest.approx(logged["train/value_loss"], rel=1e-4)
    assert found["entropy_loss"] == pytest.approx(logged["train/entropy_loss"], abs=1e-4)
    assert found["clipfrac"] == pytest.approx(logged["train/clip_fraction"], abs=1e-4)
    assert found["explained_variance"] == pytest.approx(
        float(logged["train/explained_variance"]), abs=1e-4
    )
    theirs_after = dict(policy_like_sb3(model).named_parameters())
    moved = [p.detach() - before[name] for name, p in policy.named_parameters()]
    gaps = [p.detach() - theirs_after[name].detach() for name, p in policy.named_parameters()]
    assert min(float(part.abs().max()) for part in moved) > 1e-4
    assert max(float(part.abs().max()) for part in gaps) < 1e-5
