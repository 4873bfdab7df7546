"""What compiled code gets wrong is noticed before its first use; holding it to Python leaves no trace."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.errors import DriverError
from metta.rl.compiled import driver as compiled_driver
from metta.rl.compiled.check import _compare_layers, state_put_back
from metta.rl.compiled.choice import make_driver
from metta.rl.compiled.trace import require_unchanged
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.update import UpdateRules
from metta.rl.ppo_trainer import PPOTrainer
from tests.rl.update_cases import CASES, Case, Interpreted, OwnNetwork


@pytest.mark.parametrize(
    "spoil",
    [
        lambda inputs, row: inputs[0].zero_(),
        lambda inputs, row: inputs[2].zero_(),
        lambda inputs, row: inputs[1].mul_(1.01),
        lambda inputs, row: row.fill_(float("nan")),
        lambda inputs, row: row[4].add_(1e-3),
    ],
    ids=["weights", "second moment", "first moment", "nan", "divergence"],
)
@pytest.mark.parametrize("limit", [None, 1e-4])
def test_whatever_is_wrong_in_compiled_code_is_noticed(
    spoil: Any, limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoilt(Interpreted):
        def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
            outputs = super().__call__(tensors)
            spoil(tensors, outputs[0])
            return outputs

    monkeypatch.setattr(compiled_driver, "compile_graph", lambda graph, *_: Spoilt(graph))
    settings = {
        "num_envs": 2,
        "n_steps": 16,
        "hidden_size": 8,
        "driver": "step",
        "target_kl": limit,
    }
    with pytest.raises(DriverError, match="differs from Python's"):
        PPOTrainer(None, "CartPole-v1", **settings)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["weights", "first moment", "second moment"])
def test_one_wrong_layer_is_noticed_when_others_have_larger_gradients(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoilt(Interpreted):
        def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
            before = tensors[0].clone()
            outputs = super().__call__(tensors)
            head = slice(len(before) - 8, None)  # the last parameters: a head
            if place:
                tensors[place][head] *= 1.01
            else:
                tensors[0][head] = before[head]
            return outputs

    monkeypatch.setattr(compiled_driver, "compile_graph", lambda graph, *_: Spoilt(graph))
    case = CASES["mlp"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    rollout = case.rollouts(1)[0]
    with pytest.raises(DriverError, match="differs from Python's"):
        learner.update(rollout)


class Batched(OwnNetwork):
    """Keeps running statistics of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh())


def test_running_statistics_are_as_before_when_compiling_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(compiled_driver, "compile_graph", lambda *_: asked.append(1))
    case = Case(Batched)
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    learner.policy.train()
    before = learner.policy.parameter_hash()
    with pytest.raises(DriverError, match="changes a buffer"):
        learner.prepare(case.rollouts(1)[0])
    assert learner.policy.parameter_hash() == before
    assert not asked  # nobody waits for a compiler whose code cannot be used


def test_buffers_are_put_back_when_a_block_has_changed_them() -> None:
    case = CASES["own_network"]
    policy = case.policy()
    rules = UpdateRules(policy, case.ppo, case.losses)
    scale = policy.module.scale
    with state_put_back(rules) as pairs:
        require_unchanged(pairs)
        scale.fill_(3.0)
        with pytest.raises(DriverError, match="changes a buffer"):
            require_unchanged(pairs)
    assert torch.equal(scale, torch.ones(()))


class Remembering(OwnNetwork):
    """Keeps a mean in a plain tensor, another that it sets anew, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.last, self.calls = torch.zeros(4), torch.zeros(4), 0

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            self.mean.add_(1.0)
            self.last = self.last + 1.0
            self.calls += 1
        return super().forward(obs - self.mean)


class RememberingLoss:
    """The same of a loss that is no module."""

    def __init__(self) -> None:
        self.mean, self.calls = torch.zeros(()), 0

    def __call__(self, new_values: Tensor) -> Tensor:
        self.mean.add_(1.0)
        self.calls += 1
        return (new_values - self.mean).square().mean()


@pytest.mark.parametrize("of", ["network", "loss", "method"])
def test_whatever_a_network_or_loss_remembers_is_as_before_when_compiling_was_refused(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(compiled_driver, "compile_graph", lambda *_: asked.append(1))
    loss = RememberingLoss()
    losses = [loss.__call__ if of == "method" else loss] if of != "network" else []
    case = Case(Remembering if of == "network" else OwnNetwork)
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    learner.policy.train()
    with pytest.raises(DriverError, match="changes a buffer"):
        learner.prepare(case.rollouts(1)[0], losses)
    owner: Any = learner.policy.module if of == "network" else loss
    assert (float(owner.mean.sum()), owner.calls) == (0.0, 0)
    assert float(getattr(owner, "last", torch.zeros(4)).sum()) == 0.0
    assert not asked


class LossOfAClass:
    """Has no object; what is kept for all is the class's."""

    @classmethod
    def loss(cls, new_values: Tensor) -> Tensor:
        return new_values.square().mean()


@pytest.mark.parametrize("function", [LossOfAClass.loss, nn.functional.softplus])
def test_compiling_leaves_alone_what_belongs_to_a_class_or_to_a_library(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(losses=(CustomLoss(function),))
    with state_put_back(UpdateRules(case.policy(), case.ppo, case.losses)):
        monkeypatch.setattr(function.__self__, "added", True, raising=False)
    assert function.__self__.added


def test_layers_are_compared_when_one_has_no_numbers_or_no_finite_ones() -> None:
    wanted = [torch.zeros(0), torch.tensor([float("nan"), float("inf")]), torch.tensor([1.0, 2.0])]
    _compare_layers([part.clone() for part in wanted], wanted)
    with pytest.raises(DriverError, match="differs from Python's by 2e"):
        _compare_layers([*wanted[:2], torch.tensor([1.0, -200.0])], wanted)
    _compare_layers([], [])
