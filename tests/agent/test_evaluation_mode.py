import pytest
import torch
from policy_cases import DISCRETE, VECTOR
from torch import nn
from user_modules import PACKS, Returns

from metta.agent.evaluation_mode import evaluating, parts_of
from metta.agent.policy import Policy
from metta.errors import PolicyError


def test_modes_of_parts_stay_when_a_module_is_wrapped():
    module = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), Returns(PACKS["dict"]))
    module[1].eval()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    policy = Policy(module, VECTOR, DISCRETE)
    assert policy.training
    assert [part.training for part in module] == [True, False, True]
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_modes_of_parts_stay_when_a_module_is_refused():
    module = Returns(lambda *_: None).eval()
    module.actor.train()
    with pytest.raises(PolicyError):
        Policy(module, VECTOR, DISCRETE)
    assert (module.training, module.actor.training) == (False, True)


def test_parts_return_to_their_modes_when_the_body_fails():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5).eval())
    inside = []

    def fail() -> None:
        inside.extend(part.training for part in module.modules())
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), evaluating(module):
        fail()
    assert inside == [False, False, False]
    assert [part.training for part in module.modules()] == [True, True, False]


def test_all_parts_are_found_once_in_torchs_order_when_some_are_shared_or_missing():
    shared = nn.Linear(2, 2)
    network = nn.Sequential(nn.Sequential(shared, nn.Tanh()), shared, nn.ModuleList([nn.ReLU()]))
    network.register_module("nothing", None)
    assert parts_of(network) == list(network.modules())


class StaysInTraining(nn.Dropout):
    """Whose mode is its own affair, as for dropout that estimates uncertainty."""

    def train(self, mode: bool = True):
        del mode
        return super().train(True)


def test_a_network_decides_about_its_mode_when_it_has_a_rule_of_its_own():
    network = nn.Sequential(nn.Linear(2, 2), StaysInTraining())
    network.train()
    with evaluating(network):
        assert [part.training for part in network.modules()] == [False, False, True]
    assert [part.training for part in network.modules()] == [True, True, True]
    network[1].training = network[0].training = network.training = False
    with evaluating(network):
        assert not any(part.training for part in network.modules())
    assert not any(part.training for part in network.modules())


class Merging(nn.Linear):
    """Adds something to its weights while it is evaluated, as some adapters do."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.is_merged = False

    def train(self, mode: bool = True):
        if self.is_merged == mode:
            self.weight.data += -1.0 if mode else 1.0
            self.is_merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("was_training", [True, False])
def test_a_network_is_told_of_its_mode_when_it_goes_back_to_training(was_training):
    network = nn.Sequential(Merging(), Merging())
    network.train()
    network[1].train(was_training)
    with evaluating(network):
        assert [part.is_merged for part in network] == [True, True]
    assert [part.is_merged for part in network] == [False, not was_training]
    assert [part.training for part in network.modules()] == [True, True, was_training]


def test_a_rule_of_an_instance_and_scripted_parts_are_obeyed():
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(nn.Dropout(0.5))
    network = nn.Sequential(nn.Dropout(0.5), scripted)
    network[0].train = lambda mode=True: network[0]
    numbers = torch.ones(100)
    with evaluating(network):
        assert network[0].training
        assert torch.equal(network[1](numbers), numbers)
    assert network[1](numbers).min() == 0.0
