"""What counts as a change of a network that is not a change of its tensors."""

import logging
import types
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cached_property

import pytest
import torch
from torch import Tensor, nn

from metta.agent.actors.plain_values import has_own_code, plain_values
from metta.agent.factory import make_policy
from tests.agent.policy_cases import DISCRETE, VECTOR


class Slotted:
    """Has no dictionary."""

    __slots__ = ("__hidden", "scale")

    def __init__(self) -> None:
        self.scale = self.__hidden = 1.0

    def hide(self, number: float) -> None:
        self.__hidden = number


class Network(nn.Module):
    """Keeps numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.temperature, self.sizes = 1.0, [2, 2]
        self.recent, self.slotted = deque([1.0]), Slotted()
        self.hook = self.register_forward_hook(lambda *_: None)
        self.register_buffer("seen", torch.zeros(()))


def seen_by(network: nn.Module) -> tuple[object, ...]:
    return plain_values(network)


@pytest.mark.parametrize(
    "change",
    [
        lambda n: setattr(n, "temperature", 2.0),
        lambda n: n.sizes.append(3),
        lambda n: setattr(n, "seen", torch.zeros(())),
        lambda n: setattr(n, "layer", nn.Linear(2, 2)),
        lambda n: n.layer.register_forward_hook(lambda *_: None),
        lambda n: n.layer.eval(),
        lambda n: setattr(n, "added", "word"),
        lambda n: n.recent.append(2.0),
        lambda n: setattr(n.slotted, "scale", 2.0),
        lambda n: n.slotted.hide(2.0),
        lambda n: (n.hook.remove(), n.register_forward_hook(lambda *_: 1.0)),
        lambda n: n.layer.register_full_backward_hook(lambda *_: None),
        lambda n: n.layer.register_full_backward_pre_hook(lambda *_: None),
        lambda n: n.layer.weight.register_hook(lambda gradient: gradient),
        lambda n: n.layer.weight.register_post_accumulate_grad_hook(lambda _: None),
    ],
    ids=[
        "number",
        "list",
        "buffer",
        "part",
        "hook",
        "mode",
        "attribute",
        "deque",
        "slot",
        "private slot",
        "other hook",
        "backward hook",
        "backward pre-hook",
        "gradient hook",
        "post-accumulate hook",
    ],
)
def test_a_change_shows_when_python_would_compute_otherwise(
    change: Callable[[Network], object],
) -> None:
    network = Network()
    before = seen_by(network)
    change(network)
    assert seen_by(network) != before


def test_a_change_shows_when_two_names_of_known_lists_are_swapped() -> None:
    network = Network()
    network.both = [[1.0], [2.0]]
    network.later = {"pair": dict(zip("ab", network.both, strict=True))}
    before = seen_by(network)
    assert seen_by(network) == before
    network.later["pair"].update(zip("ba", network.both, strict=True))
    assert seen_by(network) != before


def test_nothing_shows_when_tensors_change_in_place() -> None:
    network = Network()
    before = seen_by(network)
    with torch.no_grad():
        network.layer.weight.add_(1.0)
        network.get_buffer("seen").add_(1.0)
    assert seen_by(network) == before


ANNEALED = {
    "leaky": (nn.LeakyReLU(), "negative_slope"), "elu": (nn.ELU(), "alpha"),
    "softplus": (nn.Softplus(), "beta"), "threshold": (nn.Threshold(0.1, 0.0), "value"),
    "softmax": (nn.Softmax(-1), "dim"), "attention": (nn.MultiheadAttention(4, 2), "dropout"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANNEALED)
def test_a_change_shows_when_an_activation_is_annealed(name: str) -> None:
    layer, attribute = ANNEALED[name]
    network = nn.Sequential(nn.Linear(2, 2), layer)
    before = seen_by(network)
    assert seen_by(network) == before
    setattr(layer, attribute, 0.5)
    assert seen_by(network) != before
    assert not has_own_code(network)


GLOBALS = types.SimpleNamespace(scale=1.0)
SCALE = OF_HELPER = OF_METHOD = OF_PROPERTY = OF_LAMBDA = OF_COMPREHENSION = OF_INNER = OF_CACHE = (
    1.0
)
OF_PART, ELSEWHERE = {"deep": {"scale": 1.0}}, 1.0
LOGGER = logging.getLogger(__name__)


class Settings:
    """Named by its class."""

    scale = 1.0


class Kind(Enum):
    """Lists its own members."""

    FIRST = 1
    SECOND = 2


def helper(x: Tensor) -> Tensor:
    return x * OF_HELPER


class Part(nn.Module):
    """Is not called by `forward`."""

    def scaled(self, x: Tensor) -> Tensor:
        return x * OF_PART["deep"]["scale"]


class Base(nn.Module):
    """Keeps numbers for all of its objects."""

    temperature = 1.0
    table = (1.0, {"deep": 1.0})

    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE * self.temperature


class Named(Base):
    """Takes numbers from everywhere that is not `self`."""

    kind = Kind.FIRST

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: Tensor) -> Tensor:
        LOGGER.debug("called")
        x = super().forward(x) * GLOBALS.scale * Settings.scale * self.of_property * self.cached
        x = (lambda y: y * OF_LAMBDA)(self.method(self.part.scaled(helper(x))))
        return sum([x * OF_COMPREHENSION for _ in range(2)], inner(x))

    def method(self, x: Tensor) -> Tensor:
        return x * OF_METHOD

    @property
    def of_property(self) -> float:
        return OF_PROPERTY

    @cached_property
    def cached(self) -> float:
        return OF_CACHE


def inner(x: Tensor) -> Tensor:
    def scaled() -> Tensor:
        return x * OF_INNER

    return scaled()


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(Base, "temperature", 0.5),
        lambda patch: patch.setattr(Named, "temperature", 0.5, raising=False),
        lambda patch: patch.setattr(Base, "table", (1.0, {"deep": 2.0})),
        lambda patch: patch.setattr(Named, "method", lambda _, x: x),
        lambda patch: patch.setattr(Settings, "scale", 2.0),
        lambda patch: patch.setattr(GLOBALS, "scale", 2.0),
        lambda patch: patch.setitem(OF_PART["deep"], "scale", 2.0),
    ],
    ids=["base", "class", "table", "method", "settings", "object", "part"],
)
def test_a_change_shows_when_it_is_of_a_class_or_an_object_that_forward_names(
    change: Callable[[pytest.MonkeyPatch], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Named()
    before = seen_by(network)
    assert seen_by(network) == before
    change(monkeypatch)
    assert seen_by(network) != before


@pytest.mark.parametrize(
    "name",
    [
        "SCALE", "OF_HELPER", "OF_METHOD", "OF_PROPERTY", "OF_LAMBDA", "OF_COMPREHENSION", "OF_INNER",
        "OF_CACHE",
    ],
)  # fmt: skip
def test_a_change_shows_when_it_is_of_a_global_that_forward_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Named()
    before = seen_by(network)
    monkeypatch.setitem(globals(), name, 2.0)
    assert seen_by(network) != before


def test_nothing_shows_when_no_method_names_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Named()
    before = seen_by(network)
    monkeypatch.setitem(globals(), "ELSEWHERE", 2.0)
    LOGGER.debug("asked, and its answer kept")
    LOGGER.isEnabledFor(logging.INFO)
    assert seen_by(network) == before


def test_a_change_shows_when_a_loss_names_it_inside_of_a_lambda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loss(values: Tensor) -> list[Tensor]:
        return [(lambda v: v * OF_LAMBDA)(value) for value in values]

    before = plain_values(loss)
    monkeypatch.setitem(globals(), "OF_LAMBDA", 2.0)
    assert (plain_values(loss)) != before


class Loss:
    """Is called, and keeps a number for all of its objects."""

    scale = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.scale * OF_METHOD

    def method(self, values: Tensor) -> Tensor:
        return self(values)


@pytest.mark.parametrize("loss", [Loss(), Loss().method], ids=["object", "method"])
def test_a_change_shows_when_the_class_of_a_loss_changes(
    loss: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [(plain_values(loss)), (plain_values(loss))]
    monkeypatch.setattr(Loss, "scale", 2.0)
    seen.append(plain_values(loss))
    monkeypatch.setitem(globals(), "OF_METHOD", 2.0)
    seen.append(plain_values(loss))
    assert seen[0] == seen[1] != seen[2] != seen[3]


def test_values_stay_few_when_a_class_lists_its_own_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Loss, "all", [Loss() for _ in range(20)], raising=False)
    assert len(repr(plain_values(Loss()))) < 20_000
    assert len(repr(plain_values(list(Kind)))) < 200


def test_metta_networks_have_nothing_but_parts_and_modes_when_walked() -> None:
    policy = make_policy(VECTOR, DISCRETE)
    assert len(seen_by(policy)) < 2 * len(list(policy.modules()))
