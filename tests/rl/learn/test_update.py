"""One minibatch: which samples carry gradients, how pieces add up, and what makes a step."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import NonFiniteError
from metta.rl.learn.optimizer import as_stepper, make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.learn.update import apply_update
from metta.rl.learn.update_log import LOSS_NAMES, UpdateLog
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig

NAN = float("nan")


def policy_of(core: Any = "none", *, boxed: bool = False) -> Policy:
    """A small float64 policy whose action probabilities are far from uniform."""
    actions = spaces.Box(-1.0, 1.0, (2,), np.float32) if boxed else spaces.Discrete(3)
    agent = AgentConfig(core=core, hidden_size=8)
    policy = make_policy(spaces.Box(-9.0, 9.0, (3,), np.float32), actions, agent).double()
    with torch.no_grad():
        policy.get_parameter("module.heads.actor.weight").mul_(100.0)
    return policy


def data_for(policy: Policy, num_steps: int = 8, num_rows: int = 4) -> dict[str, Tensor]:
    """Random columns with advantages; recurrent ones in segments of 4."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead = (num_steps, num_rows)
    boxed = isinstance(policy.action_space, spaces.Box)
    columns = {
        "observations": normal(*lead, 3),
        "actions": normal(*lead, 2) if boxed else torch.randint(3, lead, generator=generator),
        "log_probs": normal(*lead) * 0.3 - 1.0,
        "values": normal(*lead),
        "advantages": normal(*lead),
        "returns": normal(*lead),
        "valid": torch.ones(lead, dtype=torch.bool),
        "episode_starts": torch.rand(lead, generator=generator) < 0.2,
    }
    for key in policy.initial_state(1):
        columns[f"recurrent_state/{key}"] = normal(num_steps // 4, num_rows, 8)
    return columns


def learner(policy: Policy, optimizer: Any = None, **settings: Any) -> PPOOptimizer:
    chosen = OptimizerConfig(learning_rate=0.01)
    built = make_optimizer(policy.parameters(), chosen) if optimizer is None else optimizer
    return PPOOptimizer(policy, built, "cpu", PPOConfig(**settings))


def parameters_after(policy: Policy, columns: dict[str, Tensor], **settings: Any) -> Tensor:
    """All parameters as one vector, of a copy of the policy after an update."""
    policy = copy.deepcopy(policy)
    learner(policy, **settings).update(columns)
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


# Gradients.


def test_actor_gets_gradients_when_the_ratio_is_one() -> None:
    policy = policy_of()
    columns = {k: v[0] for k, v in data_for(policy).items()}
    with torch.no_grad():
        params = policy({"obs": columns["observations"][None]}).dist_params
        columns["log_probs"] = policy.action_spec.log_prob(params, columns["actions"][None], None)[
            0
        ]
    losses = ppo_losses(learner(policy), columns)
    losses["policy_loss"].backward()
    for name in ("module.heads.actor.weight", "module.encoder.dense.0.weight"):
        gradient = policy.get_parameter(name).grad
        assert gradient is not None
        assert float(gradient.abs().max()) > 1e-6
    critic = policy.get_parameter("module.heads.critic.weight").grad
    assert critic is not None
    assert not critic.any()


def ppo_losses(ppo: PPOOptimizer, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    names = ("observations", "actions", "log_probs", "advantages", "returns", "values")
    return ppo.compute_ppo_loss(*(columns[name] for name in names))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_loss_has_six_names_and_four_gradients_when_it_is_computed_alone(core: Any) -> None:
    policy = policy_of(core)
    columns = data_for(policy) if policy.is_recurrent else {
        k: v[0] for k, v in data_for(policy).items()
    }  # fmt: skip
    losses = ppo_losses(learner(policy, ent_coef=0.1), columns)
    assert list(losses) == [
        "policy_loss", "value_loss", "entropy_loss", "total_loss", "approx_kl", "clipfrac"
    ]  # fmt: skip
    assert [loss.requires_grad for loss in losses.values()] == [True] * 4 + [False] * 2
    assert all(loss.dim() == 0 for loss in losses.values())
    for name in list(losses)[:4]:
        (gradient,) = torch.autograd.grad(
            losses[name], [policy.get_parameter("module.encoder.dense.0.weight")],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
        separate = name == "value_loss" and core == "none"  # the critic has its own encoder
        assert separate == (gradient is None or not gradient.any())
    total = losses["policy_loss"] + 0.5 * losses["value_loss"] + 0.1 * losses["entropy_loss"]
    torch.testing.assert_close(losses["total_loss"], total)


def test_masked_actions_carry_no_gradient_when_others_do() -> None:
    policy = policy_of()
    columns = data_for(policy)
    columns["actions"] %= 2
    columns["action_masks"] = torch.tensor([True, True, False]).expand(8, 4, 3).clone()
    before = policy.get_parameter("module.heads.actor.weight").detach().clone()
    learner(policy, ent_coef=0.1).update(columns)
    moved = (policy.get_parameter("module.heads.actor.weight") - before).detach().abs().sum(1)
    assert moved[2] == 0.0
    assert (moved[:2] > 0).all()
    assert policy.get_parameter("module.heads.actor.bias")[2] == 0.0


# Samples that do not count.


def spoil(columns: dict[str, Tensor]) -> None:
    """NaN and nonsense wherever a row is invalid."""
    invalid = ~columns["valid"]
    for name in ("observations", "log_probs", "values", "advantages", "returns"):
        columns[name][invalid] = NAN
    columns["actions"][invalid] = NAN if columns["actions"].dtype.is_floating_point else -1


def with_invalid(policy: Policy) -> dict[str, Tensor]:
    columns = data_for(policy)
    generator = torch.Generator().manual_seed(3)
    columns["valid"] = torch.rand(8, 4, generator=generator) < 0.7
    return columns


@pytest.mark.parametrize("boxed", [False, True])
def test_invalid_rows_change_nothing_when_they_hold_anything(boxed: bool) -> None:
    policy = policy_of(boxed=boxed)
    columns = with_invalid(policy)
    settings: dict[str, Any] = {"num_minibatches": 3, "vf_clip_coef": 0.1, "ent_coef": 0.1}
    expected = parameters_after(policy, columns, **settings)
    spoil(columns)
    assert torch.equal(parameters_after(policy, columns, **settings), expected)


def test_invalid_rows_change_nothing_when_they_are_left_out() -> None:
    policy = policy_of()
    columns = with_invalid(policy)
    kept = {name: column[columns["valid"]][:, None] for name, column in columns.items()}
    spoil(columns)
    expected = parameters_after(policy, kept, num_minibatches=1)
    found = parameters_after(policy, columns, num_minibatches=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_invalid_rows_change_nothing_when_recurrent(core: Any) -> None:
    policy = policy_of(core)
    columns = with_invalid(policy)
    expected = parameters_after(policy, columns, num_minibatches=2)
    for name in ("log_probs", "values", "advantages", "returns"):
        columns[name][~columns["valid"]] = NAN
    columns["actions"][~columns["valid"]] = -1
    assert torch.equal(parameters_after(policy, columns, num_minibatches=2), expected)


def test_nothing_steps_when_a_minibatch_has_no_valid_sample() -> None:
    policy = policy_of()
    columns = data_for(policy, 4, 1)
    columns["valid"][2] = False
    ppo = learner(policy, minibatch_size=1, update_epochs=3)
    stats = ppo.update(columns)
    assert stats["optimizer_steps"] == 9.0  # of 12: momentum alone must not move weights
    assert float(ppo.optimizer.state_dict()["state"][0]["step"]) == 9.0
    assert stats["entropy"] > 0.5  # the empty minibatch does not dilute the means
    columns["valid"][:] = False
    before = policy.parameter_hash()
    assert ppo.update(columns)["optimizer_steps"] == 0.0
    assert policy.parameter_hash() == before


# Accumulation.


@pytest.mark.parametrize("pieces", [3, 50])
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("make_data", [data_for, with_invalid])
def test_pieces_give_the_same_step_when_gradients_are_accumulated(
    make_data: Callable[[Policy], dict[str, Tensor]], core: Any, pieces: int
) -> None:
    policy = policy_of(core)
    columns = make_data(policy)
    settings: dict[str, Any] = {"num_minibatches": 2, "ent_coef": 0.05, "vf_clip_coef": 0.2}
    expected = parameters_after(policy, columns, **settings)
    found = parameters_after(policy, columns, gradient_accumulation=pieces, **settings)
    assert float((found - expected).abs().max()) < 1e-12


def test_reported_losses_agree_when_gradients_are_accumulated() -> None:
    policy = policy_of()
    columns = with_invalid(policy)
    one = learner(copy.deepcopy(policy)).update(columns)
    other = learner(copy.deepcopy(policy), gradient_accumulation=3).update(columns)
    assert other == pytest.approx(one, rel=1e-9)


# Advantages.


def policy_loss_of(columns: dict[str, Tensor], policy: Policy, **settings: Any) -> float:
    """The reported policy loss of an update that moves nothing to speak of."""
    policy = copy.deepcopy(policy)
    still = make_optimizer(policy.parameters(), OptimizerConfig(name="sgd", learning_rate=1e-30))
    return learner(policy, still, update_epochs=1, **settings).update(columns)["policy_loss"]


def on_policy(policy: Policy, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        params = policy({"obs": columns["observations"]}).dist_params
    log_probs = policy.action_spec.log_prob(params, columns["actions"], None)
    return columns | {"log_probs": log_probs}


def test_advantages_stay_as_they_are_when_a_minibatch_has_one_sample() -> None:
    policy = policy_of()
    columns = on_policy(policy, data_for(policy))
    found = policy_loss_of(columns, policy, minibatch_size=1)
    assert found == pytest.approx(-float(columns["advantages"].mean()), abs=1e-12)


def test_advantages_become_zero_when_all_are_equal() -> None:
    policy = policy_of()
    columns = on_policy(policy, data_for(policy))
    columns["advantages"].fill_(2.5)
    assert policy_loss_of(columns, policy) == pytest.approx(0.0, abs=1e-6)


def test_advantages_are_used_raw_when_normalisation_is_off() -> None:
    policy = policy_of()
    columns = on_policy(policy, data_for(policy))
    found = policy_loss_of(columns, policy, normalize_advantages=False, num_minibatches=1)
    assert found == pytest.approx(-float(columns["advantages"].mean()), abs=1e-12)
    # the ratio is 1, so normalised advantages have mean 0
    assert policy_loss_of(columns, policy, num_minibatches=1) == pytest.approx(0.0, abs=1e-12)


# Steps.


@pytest.mark.parametrize("limit", [0.01, 1e6, None])
def test_gradient_norm_is_limited_when_a_limit_is_set(limit: float | None) -> None:
    policy = policy_of()
    columns = data_for(policy)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    plain = make_optimizer(policy.parameters(), OptimizerConfig(name="sgd", learning_rate=1.0))
    ppo = learner(policy, plain, max_grad_norm=limit, num_minibatches=1, update_epochs=1)
    norm = ppo.update(columns)["grad_norm"]
    assert norm > 0.01
    pairs = zip(policy.parameters(), before, strict=True)
    moved = torch.cat([(parameter - old).detach().flatten() for parameter, old in pairs]).norm()
    # the norm in the denominator is raised by 1e-6, as torch does
    assert float(moved) == pytest.approx(norm if limit != 0.01 else 0.01, rel=1e-3)


@pytest.mark.parametrize(("stopped", "finite"), [(True, True), (False, False), (True, False)])
def test_nothing_moves_when_a_minibatch_stopped_or_is_not_finite(
    stopped: bool, finite: bool
) -> None:
    policy = policy_of()
    ppo = learner(policy)
    for parameter in policy.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(1.0)
    terms = torch.zeros(6, dtype=torch.float64)
    terms[1] = 0.0 if finite else NAN
    before = policy.parameter_hash()
    _, found = apply_update(as_stepper(ppo.optimizer), terms, torch.tensor(stopped), 0.5)
    assert bool(found) == finite
    assert policy.parameter_hash() == before
    apply_update(
        as_stepper(ppo.optimizer), torch.zeros(6, dtype=torch.float64), torch.tensor(False), 0.5
    )
    assert policy.parameter_hash() != before


# The report.


def log_of(rows: list[tuple[float, bool, bool, bool]]) -> UpdateLog:
    """Minibatches whose terms all equal one number: (number, finite, computed, stopped)."""
    log = UpdateLog()
    for number, finite, computed, stopped in rows:
        log.add(torch.tensor([*[number] * 6, 2 * number, finite, computed, stopped]))
    return log


def test_means_cover_computed_minibatches_when_an_update_stopped_early() -> None:
    rows = [(1.0, True, True, False), (4.0, True, True, True), (100.0, True, False, True)]
    means = log_of(rows).report().means()
    assert [means[name] for name in LOSS_NAMES] == [2.5] * 6
    assert means["grad_norm"] == 5.0
    assert means["optimizer_steps"] == 1.0
    assert means["kl_stopped"] == 1.0


def test_means_leave_out_minibatches_when_they_are_not_finite() -> None:
    rows = [(1.0, True, True, False), (NAN, False, True, False), (3.0, True, True, False)]
    means = log_of(rows).report().means()
    assert means["policy_loss"] == 2.0
    assert means["optimizer_steps"] == 2.0
    assert means["skipped_steps"] == 1.0


def test_skipped_steps_count_in_a_row_when_finite_ones_lie_between() -> None:
    good, bad = (1.0, True, True, False), (NAN, False, True, False)
    report = log_of([bad, good, bad, bad]).report()
    assert report.check_skipped(0, limit=3) == 2
    assert log_of([good]).report().check_skipped(2, limit=3) == 0
    with pytest.raises(NonFiniteError, match=r"3 optimizer steps in a row .* policy_loss"):
        log_of([bad]).report().check_skipped(2, limit=3)


def test_metrics_keep_no_graph_when_a_custom_loss_reports_them() -> None:
    log = log_of([(1.0, True, True, False)])
    row = torch.tensor([*[1.0] * 7, True, True, False])
    log.add(row, [{"a": torch.ones((), requires_grad=True) * 3, "b": 1.0}])
    log.add(row, [{"a": torch.tensor(4.0)}, {"a": torch.tensor(5.0)}])
    stopped = torch.tensor([*[1.0] * 7, True, False, True])
    log.add(row, [{"a": torch.tensor(4.0)}])
    log.add(stopped, [{"a": torch.tensor(900.0)}])
    means = log.report().means()
    assert means["custom/a"] == 4.0
    assert means["custom/b"] == 1.0
