import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta import PPOTrainer
from metta.agent.output import PolicyOutput
from metta.envs.toy import CorridorEnv, MaskedCorridorEnv, NestedEnv
from metta.errors import ConfigError, MettaWarning
from metta.rl.learn.custom_losses import SHARED_NAMES, CustomLoss, as_custom_losses

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "n_steps": 8,
    "n_epochs": 2,
    "hidden_size": 8,
    "recipe": "none",
}


def trainer_with(*losses: Any, **options: Any) -> PPOTrainer:
    return PPOTrainer(None, CorridorEnv, custom_losses=losses, **SMALL | options)


def value_size(new_values: Tensor) -> Tensor:
    return new_values.square().mean()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


def test_parameters_differ_when_a_loss_is_added() -> None:
    with trainer_with() as plain, trainer_with(value_size) as custom:
        data = plain.collect_rollouts()
        plain.learn(data)
        metrics = custom.learn(data)
        assert plain.policy.parameter_hash() != custom.policy.parameter_hash()
    assert metrics["custom/value_size"] > 0.0


def test_the_total_holds_the_loss_when_it_is_weighted() -> None:
    def one(new_values: Tensor) -> Tensor:
        return new_values.sum() * 0.0 + 1.0

    with trainer_with(CustomLoss(one, weight=3.0), n_epochs=1) as trainer:
        losses = trainer.learn(trainer.collect_rollouts())
    # entropy has no weight here: total = policy + 0.5 * value + 3
    known = losses["policy_loss"] + 0.5 * losses["value_loss"] + 3.0
    assert losses["total_loss"] == pytest.approx(known, abs=1e-5)
    assert losses["custom/one"] == pytest.approx(3.0)


def test_metrics_are_averaged_over_minibatches_when_a_loss_returns_them() -> None:
    seen: list[float] = []

    def loss(new_values: Tensor) -> tuple[Tensor, dict[str, Any]]:
        seen.append(float(len(seen)))
        return new_values.mean() * 0.0, {"count": seen[-1], "size": new_values.detach().norm()}

    with trainer_with(loss) as trainer:
        losses = trainer.learn(trainer.collect_rollouts())
    # two passes of four minibatches: 0, 1, ..., 7
    assert losses["custom/loss/count"] == 3.5
    assert losses["custom/loss/size"] >= 0.0


def test_weights_follow_the_schedule_when_training_goes_on() -> None:
    def one(new_values: Tensor) -> Tensor:
        return new_values.sum() * 0.0 + 1.0

    loss = CustomLoss(one, weight=2.0, schedule="linear", schedule_end=0.5)
    with trainer_with(loss) as trainer:
        history = trainer.train(128)
    # from 2 to 1 over the run; epochs begin at 0, 1/4, 2/4 and 3/4 of it
    assert history["custom/one"] == pytest.approx([2.0, 1.75, 1.5, 1.25])


class Predictor(nn.Module):
    """A loss with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)

    def forward(self, obs: Tensor, rewards: Tensor) -> Tensor:
        return (self.head(obs).squeeze(-1) - rewards).square().mean()


def test_the_parameters_of_a_loss_learn_when_it_is_a_module() -> None:
    predictor = Predictor()
    before = predictor.head.weight.detach().clone()
    with trainer_with(predictor, lr=1e-2) as trainer:
        history = trainer.train(320)
    assert not torch.equal(predictor.head.weight, before)
    errors = history["custom/Predictor"]
    assert errors[-1] < errors[0]


def test_each_parameter_is_stepped_once_when_a_loss_holds_the_policy() -> None:
    net = Net()

    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self) -> Tensor:
            return 0.0 * sum(p.square().sum() for p in self.net.parameters())

    with PPOTrainer(net, CorridorEnv, custom_losses=[Decay()], **SMALL) as trainer:
        data = trainer.collect_rollouts()
        count = sum(p.numel() for p in net.parameters())
        assert sum(p.numel() for g in trainer.optimizer.param_groups for p in g["params"]) == count
        trainer.learn(data)
        held = torch.cat([p.flatten() for p in net.parameters()])
        assert torch.equal(trainer.optimizer.flat, held)


def test_a_loss_sees_only_what_it_names_when_it_is_called() -> None:
    seen: dict[str, Any] = {}

    def loss(
        policy: Any, obs: Any, actions: Any, rewards: Any, values: Any, advantages: Any
    ) -> Tensor:
        seen.update(policy=policy, obs=obs, actions=actions, values=values, advantages=advantages)
        return policy(obs)[1].mean() + 0.0 * rewards.sum()

    net = Net()
    with PPOTrainer(net, CorridorEnv, custom_losses=[loss], **SMALL) as trainer:
        data = trainer.collect_rollouts()
        trainer.learn(data)
    assert seen["policy"] is net
    assert seen["obs"].shape == (8, 8)
    assert seen["actions"].shape == seen["values"].shape == (8,)
    assert not seen["values"].requires_grad
    # advantages come as they were collected; only PPO's own loss sees normalised ones
    assert set(seen["advantages"].tolist()) <= set(data["advantages"].flatten().tolist())


def test_every_shared_name_can_be_asked_for_when_the_rollout_has_it() -> None:
    def loss(**everything: Any) -> Tensor:
        assert set(SHARED_NAMES) <= everything.keys()
        assert isinstance(everything["output"], PolicyOutput)
        assert everything["new_log_probs"].requires_grad
        assert everything["entropy"].requires_grad
        return everything["new_values"].mean()

    with PPOTrainer(None, MaskedCorridorEnv, custom_losses=[loss], **SMALL) as trainer:
        trainer.learn(trainer.collect_rollouts())


def test_observations_have_their_nesting_when_the_space_is_nested() -> None:
    def loss(obs: Any, new_values: Tensor) -> Tensor:
        assert obs["camera"].shape == (8, 3, 8, 8)
        assert obs["state"][1]["gear"].shape == (8, 2)
        return new_values.mean()

    with PPOTrainer(None, NestedEnv, custom_losses=[loss], **SMALL) as trainer:
        trainer.learn(trainer.collect_rollouts())


def test_samples_are_segments_when_the_policy_is_recurrent() -> None:
    def loss(obs: Tensor, new_values: Tensor) -> Tensor:
        assert obs.shape == (4, 2, 8)
        assert new_values.shape == (4, 2)
        return new_values.mean()

    with trainer_with(loss, core="lstm", bptt_horizon=4) as trainer:
        trainer.learn(trainer.collect_rollouts())


def test_a_default_stays_when_a_parameter_has_one() -> None:
    def loss(new_values: Tensor, scale: float = 0.25, entropy: float = -1.0) -> Tensor:
        assert (scale, entropy) == (0.25, -1.0)
        return new_values.mean() * scale

    with trainer_with(loss) as trainer:
        trainer.learn(trainer.collect_rollouts())


def test_bound_arguments_stay_when_a_loss_is_a_partial() -> None:
    def loss(new_values: Tensor, scale: float) -> Tensor:
        assert scale == 0.5
        return new_values.mean() * scale

    bound = CustomLoss(functools.partial(loss, scale=0.5), name="bound")
    with trainer_with(bound) as trainer:
        assert "custom/bound" in trainer.learn(trainer.collect_rollouts())


@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (lambda new_value: new_value.mean(), "'new_value', which is not available; did you mean"),
        (lambda curiosity: curiosity.mean(), "'curiosity', which is not available; available"),
    ],
)
def test_a_config_error_hints_when_a_loss_asks_for_an_unknown_name(loss: Any, hint: str) -> None:
    with trainer_with(CustomLoss(loss, name="mine")) as trainer:
        data = trainer.collect_rollouts()
        with pytest.raises(ConfigError) as caught:
            trainer.learn(data)
    assert "custom loss 'mine' asks for" in str(caught.value)
    assert hint in str(caught.value)
    assert "new_log_probs" in str(caught.value)


def test_a_config_error_says_so_when_the_rollout_lacks_a_column() -> None:
    def loss(new_values: Tensor, action_masks: Tensor) -> Tensor:
        return (new_values * action_masks[:, 0]).mean()

    with trainer_with(loss) as trainer, pytest.raises(ConfigError, match="has no such column"):
        trainer.learn(trainer.collect_rollouts())


@pytest.mark.parametrize(
    ("result", "found"),
    [(lambda v: v, r"returned \(8,\)"), (lambda _: 0.5, "returned float"), (lambda _: None, "NoneType"),
     (lambda v: (v, {}), r"returned \(8,\)"), (lambda v: v.mean()[None], r"returned \(1,\)")],
)  # fmt: skip
def test_a_config_error_shows_the_shape_when_a_loss_is_no_scalar(result: Any, found: str) -> None:
    def loss(new_values: Tensor) -> Any:
        return result(new_values)

    with trainer_with(loss) as trainer, pytest.raises(ConfigError, match=found):
        trainer.learn(trainer.collect_rollouts())


def test_a_warning_is_given_when_a_loss_has_no_gradient() -> None:
    def loss(values: Tensor) -> Tensor:
        return values.mean()

    with trainer_with(loss) as trainer, pytest.warns(MettaWarning, match="depend on any parameter"):
        trainer.learn(trainer.collect_rollouts())


def test_names_are_those_of_functions_and_classes_when_none_are_given() -> None:
    losses = as_custom_losses([value_size, Predictor(), CustomLoss(value_size, name="other")])
    assert [loss.label for loss in losses] == ["value_size", "Predictor", "other"]
    assert [loss.weight for loss in losses] == [1.0, 1.0, 1.0]


def test_a_config_error_is_raised_when_two_losses_have_one_name() -> None:
    with pytest.raises(ConfigError, match="give each its own name="):
        as_custom_losses([value_size, value_size])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "liner"}, "schedule='liner'; did you mean 'linear'?"),
        ({"schedule": "adaptive_kl"}, "schedule='adaptive_kl'"),
        ({"weight": float("nan")}, "weight=nan"),
        ({"schedule_end": float("inf")}, "schedule_end=inf"),
        ({"fn": 3}, "must be a function, got int"),
    ],
)
def test_a_config_error_is_raised_at_once_when_a_loss_is_set_up_wrong(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        CustomLoss(**{"fn": value_size} | options)
    assert message in str(caught.value)


def test_gradients_are_those_of_the_whole_when_a_minibatch_is_accumulated() -> None:
    with trainer_with(value_size, n_epochs=1) as whole:
        data = whole.collect_rollouts()
        whole.learn(data)
    with trainer_with(value_size, n_epochs=1, gradient_accumulation=4) as pieces:
        pieces.learn(data)
    for first, second in zip(whole.policy.parameters(), pieces.policy.parameters(), strict=True):
        # the mean of means over equal pieces differs in the last bits only
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("module", [Net, None], ids=["own", "built in"])
def test_the_network_repeats_the_shared_forward_when_a_loss_calls_it(module: Any) -> None:
    gaps: list[float] = []

    def loss(policy: Any, obs: Any, output: PolicyOutput) -> Tensor:
        params, _ = policy(obs)
        gaps.append(float((params - output.dist_params).detach().abs().max()))
        return params.mean()

    network = None if module is None else module()
    settings = {**SMALL, "normalize_observations": True}
    with PPOTrainer(network, CorridorEnv, custom_losses=[loss], **settings) as trainer:
        for _ in range(2):  # normalisers have moved before the second update
            trainer.learn(trainer.collect_rollouts())
    assert max(gaps) == 0.0


def test_a_config_error_is_raised_when_a_metric_is_not_one_number() -> None:
    def loss(new_values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return new_values.mean(), {"all": new_values}

    with (
        PPOTrainer(None, CorridorEnv, custom_losses=[loss], **SMALL) as trainer,
        pytest.raises(ConfigError, match="metric 'all' of custom loss 'loss'"),
    ):
        trainer.learn(trainer.collect_rollouts())
