"""What counts as a change of a network that is not a change of its tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from metta.agent.plain_values import plain_values


class Network(nn.Module):
    """Keeps numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.temperature, self.sizes = 1.0, [2, 2]
        self.register_buffer("seen", torch.zeros(()))


def seen_by(network: nn.Module) -> tuple[object, ...]:
    return tuple(plain_values(network))


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
    ],
    ids=["number", "list", "buffer", "part", "hook", "mode", "attribute"],
)
def test_a_change_shows_when_python_would_compute_otherwise(
    change: Callable[[Network], object],
) -> None:
    network = Network()
    before = seen_by(network)
    change(network)
    assert seen_by(network) != before


def test_nothing_shows_when_tensors_change_in_place() -> None:
    network = Network()
    before = seen_by(network)
    with torch.no_grad():
        network.layer.weight.add_(1.0)
        network.get_buffer("seen").add_(1.0)
    assert seen_by(network) == before
