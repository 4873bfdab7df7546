import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.networks.encoders import (
    GridStem,
    ObsEncoder,
    VectorStem,
    nature_cnn,
    orthogonal,
    small_cnn,
)
from metta.errors import ConfigError
from metta.spaces import ObsLeaf, obs_spec_of
from metta.train.train_config import AgentConfig


def image(*shape: int, dtype: type = np.uint8) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


def leaf_of(space: spaces.Space) -> ObsLeaf:
    return obs_spec_of(space).leaves[0]


def pixels(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, shape, generator=generator).float()


def encoder_of(space: spaces.Space, kind: str = "auto", **settings) -> ObsEncoder:
    settings = {"hidden_size": 16, "num_layers": 2, "activation": "tanh"} | settings
    torch.manual_seed(0)
    return ObsEncoder(obs_spec_of(space), kind, AgentConfig(**settings))


def assert_orthogonal(weight: Tensor, gain: float) -> None:
    matrix = weight.detach().double().flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    # to the float32 that torch's QR works in
    wanted = gain**2 * torch.eye(len(matrix)).double()
    torch.testing.assert_close(matrix @ matrix.T, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("gain", [0.01, 1.0, math.sqrt(2)])
@pytest.mark.parametrize("layer", [nn.Linear(8, 5), nn.Linear(3, 9), nn.Conv2d(2, 6, 3)], ids=str)
def test_weights_are_orthogonal_and_biases_zero_when_initialised(layer, gain):
    assert orthogonal(layer, gain) is layer
    assert_orthogonal(layer.weight, gain)
    assert not layer.bias.any()


def test_layers_without_bias_are_taken_when_initialised():
    assert_orthogonal(orthogonal(nn.Linear(4, 4, bias=False), 1.0).weight, 1.0)


def test_every_dense_layer_is_orthogonal_when_an_encoder_is_made():
    encoder = encoder_of(spaces.Box(-1, 1, (6,)), num_layers=3)
    linear = [layer for layer in encoder.dense if isinstance(layer, nn.Linear)]
    assert len(linear) == 3
    for layer in linear:
        assert_orthogonal(layer.weight, math.sqrt(2))


@pytest.mark.parametrize(("size", "features"), [(36, 64), (84, 3136), (40, 64)])
def test_nature_features_have_the_published_size_when_frames_fit(size, features):
    # 84 -> 20 -> 9 -> 7, and 64 channels: 3136
    assert nature_cnn(4)(torch.zeros(2, 4, size, size)).shape == (2, features)


def test_small_features_keep_the_grid_when_padded():
    assert small_cnn(3)(torch.zeros(2, 3, 5, 7)).shape == (2, 32 * 5 * 7)


@pytest.mark.parametrize(("height", "width"), [(36, 48), (7, 7), (6, 9)])
def test_features_agree_when_channels_come_first_or_last(height, width):
    frames = pixels(5, 3, height, width)
    stems = []
    for shape in ((3, height, width), (height, width, 3)):
        torch.manual_seed(0)
        stems.append(GridStem(leaf_of(image(*shape)), "auto", 255.0))
    first, last = stems
    assert (first.channels_last, last.channels_last) == (False, True)
    # another memory layout may sum in another order
    torch.testing.assert_close(last(frames.movedim(1, -1)), first(frames), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((84, 84, 3), 3),
        ((4, 84, 84), 4),
        ((7, 7, 20), 20),  # more channels than pixels: the square tells
        ((20, 7, 7), 20),
        ((210, 160, 3), 3),
        ((3, 210, 160), 3),
        ((5, 5, 5), 5),
    ],
)
def test_channels_are_recognised_when_shapes_are_usual(shape, channels):
    stem = GridStem(leaf_of(image(*shape)), "simple_cnn", 255.0)
    assert stem.convolutions[0].in_channels == channels


def test_pixels_are_scaled_to_one_when_uint8():
    torch.manual_seed(0)
    stem = GridStem(leaf_of(image(3, 36, 36)), "nature_cnn", 255.0)
    frames = pixels(2, 3, 36, 36)
    torch.testing.assert_close(stem(frames), stem.convolutions(frames / 255), rtol=1e-5, atol=1e-6)


def test_grids_are_not_scaled_when_they_are_floats():
    stem = GridStem(leaf_of(spaces.Box(-1, 1, (3, 6, 6))), "auto", 255.0)
    grid = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(stem(grid), stem.convolutions(grid))


@pytest.mark.parametrize(
    ("kind", "size", "first_kernel"),
    [("auto", 36, 8), ("auto", 35, 3), ("simple_cnn", 64, 3), ("nature_cnn", 36, 8)],
)
def test_convolutions_are_chosen_by_size_when_asked_for(kind, size, first_kernel):
    stem = GridStem(leaf_of(image(size, size, 3)), kind, 255.0)
    assert stem.convolutions[0].kernel_size == (first_kernel, first_kernel)


def test_nature_cnn_is_refused_when_frames_are_too_small():
    with pytest.raises(ConfigError, match=r"at least 36 pixels.*simple_cnn"):
        encoder_of(image(35, 84, 3), "nature_cnn")


@pytest.mark.parametrize("kind", ["simple_cnn", "nature_cnn"])
def test_convolutions_are_refused_when_there_is_no_grid(kind):
    with pytest.raises(ConfigError, match="use 'mlp'"):
        encoder_of(spaces.Box(-1, 1, (4,)), kind)


def test_mlp_flattens_when_the_observation_is_a_grid():
    encoder = encoder_of(image(6, 6, 3), "mlp")
    assert encoder.dense[0].in_features == 6 * 6 * 3
    assert encoder({"obs": pixels(2, 6, 6, 3)}).shape == (2, 16)


def test_discrete_values_become_one_hot_when_encoded():
    stem = VectorStem(leaf_of(spaces.MultiDiscrete([2, 3])), 255.0)
    found = stem(torch.tensor([[0, 2], [1, 0]]))
    assert found.tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    scalar = VectorStem(leaf_of(spaces.Discrete(3)), 255.0)
    assert scalar(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    grid = VectorStem(leaf_of(spaces.MultiDiscrete([[2, 2], [2, 2]])), 255.0)
    assert grid(torch.tensor([[[0, 1], [1, 0]]])).tolist() == [[1, 0, 0, 1, 0, 1, 1, 0]]


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_features_equal_the_formula_when_leaves_are_mixed(activation):
    space = spaces.Dict(
        {
            "number": spaces.Box(-1, 1, ()),
            "matrix": spaces.Box(-1, 1, (2, 3)),
            "choice": spaces.Discrete(4),
            "bits": spaces.MultiBinary(2),
        }
    )
    encoder = encoder_of(space, activation=activation)
    obs = {
        "number": torch.tensor([0.5, -0.5]),
        "matrix": torch.arange(12.0).reshape(2, 2, 3) / 12,
        "choice": torch.tensor([3, 0]),
        "bits": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    }
    rows = {
        "number": obs["number"][:, None],
        "matrix": obs["matrix"].flatten(1),
        "choice": nn.functional.one_hot(obs["choice"], 4).float(),
        "bits": obs["bits"],
    }
    joined = torch.cat([rows[key] for key in encoder.keys], -1)
    activate = {"tanh": torch.tanh, "relu": torch.relu, "elu": nn.functional.elu,
                "silu": nn.functional.silu}[activation]  # fmt: skip
    first, second = encoder.dense[0], encoder.dense[2]
    wanted = activate(second(activate(first(joined))))
    torch.testing.assert_close(encoder(obs), wanted, rtol=0, atol=1e-6)


def test_grid_and_vector_meet_in_one_layer_when_mixed():
    space = spaces.Dict({"camera": image(6, 6, 3), "speed": spaces.Box(-1, 1, (2,))})
    encoder = encoder_of(space)
    assert encoder.uses_grid
    assert [type(layer) for layer in encoder.dense] == [nn.Linear, nn.ReLU]
    assert encoder.dense[0].in_features == 32 * 36 + 2
    obs = {"camera": pixels(3, 6, 6, 3), "speed": torch.zeros(3, 2)}
    assert encoder(obs).shape == (3, 16)
