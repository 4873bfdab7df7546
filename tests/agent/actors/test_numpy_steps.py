import numpy as np
import pytest
import torch
from torch import nn

from metta.agent.actors.numpy_steps import FUNCTIONS, METHODS

UNARY = [torch.tanh, torch.relu, torch.sigmoid, nn.functional.relu]
VALUES = np.array([[-200.0, -1.5, -0.0], [0.0, 0.75, 200.0]], np.float32)


@pytest.mark.parametrize("function", UNARY, ids=lambda function: function.__name__)
def test_numpy_form_agrees_with_torch_when_values_are_large_and_small(function) -> None:
    expected = function(torch.from_numpy(VALUES)).numpy()
    with np.errstate(over="ignore"):  # as programs run them: an overflowing exp has the right limit
        found = FUNCTIONS[function](VALUES)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["tanh", "relu", "sigmoid"])
def test_method_agrees_with_torch_when_called_by_name(name: str) -> None:
    expected = getattr(torch.from_numpy(VALUES), name)().numpy()
    with np.errstate(over="ignore"):
        found = METHODS[name](VALUES)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_flatten_agrees_with_torch_when_leading_axes_stay() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    expected = torch.flatten(torch.from_numpy(array), 1).numpy()
    np.testing.assert_array_equal(FUNCTIONS[torch.flatten](array, 1), expected)
