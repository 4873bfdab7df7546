import itertools

import pytest
import torch
from torch import Tensor, nn

from metta.agent.networks.recurrent import CORES, GRUCore, LSTMCore, RecurrentCore

T, N, INPUTS, HIDDEN = 7, 4, 3, 5


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    )


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> RecurrentCore:
    built = CORES[request.param](INPUTS, HIDDEN).double()
    with torch.no_grad():
        for number, parameter in enumerate(built.parameters()):
            parameter.copy_(0.5 * tensor(*parameter.shape, seed=number))
    return built


def random_state(core: RecurrentCore, seed: int = 50) -> dict[str, Tensor]:
    return {name: tensor(N, HIDDEN, seed=seed + i) for i, name in enumerate(core.state_names)}


def no_starts() -> Tensor:
    return torch.zeros(T, N, dtype=torch.bool)


def reference(core: RecurrentCore) -> nn.RNNBase:
    kind = {LSTMCore: nn.LSTM, GRUCore: nn.GRU}[type(core)]
    other = kind(INPUTS, HIDDEN).double()
    with torch.no_grad():
        other.weight_ih_l0.copy_(core.input_projection.weight)
        other.bias_ih_l0.copy_(core.input_projection.bias)
        other.weight_hh_l0.copy_(core.hidden_projection.weight)
        other.bias_hh_l0.copy_(core.hidden_projection.bias)
    return other


def run_reference(
    other: nn.RNNBase, features: Tensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    parts = tuple(part[None] for part in state.values())
    outputs, last = other(features, parts if isinstance(other, nn.LSTM) else parts[0])
    last = last if isinstance(last, tuple) else (last,)
    return outputs, {name: part[0] for name, part in zip(state, last, strict=True)}


def test_outputs_equal_torch_when_no_episode_starts(core):
    features, state = tensor(T, N, INPUTS), random_state(core)
    outputs, last = core(features, state, no_starts())
    wanted, wanted_last = run_reference(reference(core), features, state)
    torch.testing.assert_close(outputs, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(last, wanted_last, rtol=0, atol=1e-12)


def test_gradients_equal_torch_when_no_episode_starts(core):
    features, state, other = tensor(T, N, INPUTS), random_state(core), reference(core)
    core(features, state, no_starts())[0].square().sum().backward()
    run_reference(other, features, state)[0].square().sum().backward()
    pairs = [
        (core.input_projection.weight, other.weight_ih_l0),
        (core.hidden_projection.weight, other.weight_hh_l0),
        (core.hidden_projection.bias, other.bias_hh_l0),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10)
        assert ours.grad.abs().max() > 0


def test_pieces_run_from_zero_when_episodes_start_inside(core):
    features, state = tensor(T, N, INPUTS), random_state(core)
    starts = no_starts()
    starts[3, 0] = starts[5, 0] = starts[1, 2] = starts[6, 3] = True
    outputs, last = core(features, state, starts)
    other = reference(core)
    for row in range(N):
        cuts = [0, *starts[:, row].nonzero().flatten().tolist(), T]
        carried = {name: part[row : row + 1] for name, part in state.items()}
        for begin, end in itertools.pairwise(cuts):
            wanted, carried_on = run_reference(other, features[begin:end, row : row + 1], carried)
            torch.testing.assert_close(
                outputs[begin:end, row : row + 1], wanted, rtol=0, atol=1e-12
            )
            carried = {name: torch.zeros_like(part) for name, part in carried_on.items()}
        for name, part in carried_on.items():
            torch.testing.assert_close(last[name][row], part[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("poison", [1e3, float("nan"), float("inf")])
def test_given_state_is_ignored_when_the_first_step_starts_an_episode(core, poison):
    features, starts = tensor(T, N, INPUTS), no_starts()
    starts[0] = True
    poisoned = {name: torch.full_like(part, poison) for name, part in random_state(core).items()}
    outputs, last = core(features, poisoned, starts)
    wanted, wanted_last = core(features, core.initial_state(N), no_starts())
    assert torch.equal(outputs, wanted)
    assert all(torch.equal(last[name], wanted_last[name]) for name in last)


def test_no_gradient_crosses_when_an_episode_starts(core):
    features, starts = tensor(T, N, INPUTS).requires_grad_(), no_starts()
    starts[4] = True
    outputs, _ = core(features, random_state(core), starts)
    outputs[4:].sum().backward()
    assert (features.grad[:4] == 0).all()
    assert (features.grad[4:] != 0).any(-1).all()


def test_gradient_flows_back_through_time_when_nothing_starts(core):
    features = tensor(T, N, INPUTS).requires_grad_()
    state = {name: part.requires_grad_() for name, part in random_state(core).items()}
    core(features, state, no_starts())[0][-1].sum().backward()
    assert (features.grad[0] != 0).any(-1).all()
    assert all((part.grad != 0).any() for part in state.values())


def test_inputs_are_left_alone_when_run(core):
    features, state, starts = tensor(T, N, INPUTS), random_state(core), no_starts()
    starts[0, 1] = starts[2, 2] = True
    given = {name: part.clone() for name, part in state.items()}
    kept = features.clone(), starts.clone()
    core(features, state, starts)
    assert all(torch.equal(state[name], part) for name, part in given.items())
    assert torch.equal(features, kept[0])
    assert torch.equal(starts, kept[1])


def test_steps_one_by_one_equal_the_sequence_when_state_is_carried(core):
    features, state, starts = tensor(T, N, INPUTS), random_state(core), no_starts()
    starts[2, 1] = starts[5] = True
    outputs, last = core(features, state, starts)
    for step in range(T):
        output, state = core(features[step : step + 1], state, starts[step : step + 1])
        torch.testing.assert_close(output[0], outputs[step], rtol=0, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-12)


def test_initial_state_is_zero_and_of_the_core_type_when_asked_for(core):
    state = core.initial_state(3)
    assert set(state) == set(core.state_names)
    for part in state.values():
        assert part.shape == (3, HIDDEN)
        assert part.dtype == torch.float64
        assert not part.any()
        assert not part.requires_grad


def test_recurrent_weights_are_orthogonal_when_fresh():
    for kind in CORES.values():
        weight = kind(INPUTS, HIDDEN).hidden_projection.weight.detach().double()
        # W is tall: its columns are orthonormal, to the float32 that torch's QR works in
        torch.testing.assert_close(weight.T @ weight, torch.eye(HIDDEN).double(), rtol=0, atol=1e-6)
