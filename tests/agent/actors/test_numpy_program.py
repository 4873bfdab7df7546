import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from metta.agent.actors.numpy_program import NumpyProgram
from metta.agent.actors.recorded_calls import record_calls
from metta.agent.module_output import read_output
from metta.agent.output import PolicyOutput
from metta.errors import ActorError

ROWS = 6


class Net(nn.Module):
    """`body(module, obs)` between two layers; the critic may be anything."""

    def __init__(self, body, **parts) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.critic = nn.Linear(3, 4), nn.Linear(4, 2), nn.Conv1d(1, 1, 1)
        for name, part in parts.items():
            setattr(self, name, part)
        self.body = body

    def forward(self, obs):
        return self.second(self.body(self, self.first(obs))), self.critic(obs[:, None])


def observation(seed: int = 0) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((ROWS, 3)).astype(np.float32)


def program_of(module: nn.Module) -> NumpyProgram:
    def forward(obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return read_output(module(obs))[:2]

    recorded = record_calls(module, forward, [torch.from_numpy(observation())])
    return NumpyProgram(recorded, recorded.outputs[0], [observation()])


def wanted(module: nn.Module, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(obs))[0].numpy()


def assert_agrees(module: nn.Module, scale: float = 1.0) -> None:
    program = program_of(module)
    for seed in range(3):
        obs = scale * observation(seed)
        found = program.run([obs])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted(module, obs), rtol=1e-5, atol=1e-6)


LAYERS = [
    nn.Tanh(), nn.ReLU(), nn.ReLU(inplace=True), nn.Sigmoid(), nn.SiLU(), nn.ELU(), nn.ELU(0.3),
    nn.Identity(), nn.Flatten(), nn.Linear(4, 4, bias=False),
    nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.ReLU())),
    nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
]  # fmt: skip

OPERATIONS = {
    "torch.tanh": lambda _, h: torch.tanh(h),
    "method tanh": lambda _, h: h.tanh(),
    "functional tanh": lambda _, h: functional.tanh(h),
    "torch.relu": lambda _, h: torch.relu(h),
    "functional relu": lambda _, h: functional.relu(h),
    "functional relu in place": lambda _, h: functional.relu(h, inplace=True),
    "functional silu": lambda _, h: functional.silu(h),
    "functional elu": lambda _, h: functional.elu(h, alpha=0.7),
    "torch.sigmoid": lambda _, h: torch.sigmoid(h),
    "method sigmoid": lambda _, h: h.sigmoid(),
    "arithmetic": lambda _, h: (2.0 * h - 1) / 3 + h * h,
    "arithmetic from the left": lambda _, h: (1.0 - h) / 3 + 2.0 / (3.0 + h * h),
    "residual": lambda _, h: h + torch.tanh(h),
    "parts": lambda _, h: torch.cat([h[:, 2:], h[:, :1], h[..., 1:2]], dim=-1),
    "positional cat": lambda _, h: torch.cat((h[:, :2], h[:, 2:]), 1),
    "flatten": lambda _, h: torch.flatten(h[:, None], start_dim=1),
    "method flatten": lambda _, h: h[:, None].flatten(-2, -1),
    "unsqueeze": lambda _, h: h.unsqueeze(1).flatten(1),
    "cast": lambda _, h: h.to(torch.float32).float(),
    "constant": lambda _, h: h * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "broadcast": lambda m, h: m.second.weight[0].expand_as(h) * h,
    "weights alone": lambda m, h: torch.special.erf(m.second.weight[0]).softmax(-1) * h,
    "in place on shared": lambda _, h: h + functional.relu(h, inplace=True),
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer).replace("\n", ""))
def test_layers_agree_with_torch_when_known(layer):
    assert_agrees(Net(lambda module, hidden: module.layer(hidden), layer=copy.deepcopy(layer)))


@pytest.mark.parametrize("body", OPERATIONS.values(), ids=OPERATIONS)
def test_operations_agree_with_torch_when_known(body):
    assert_agrees(Net(body))


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.SiLU(), nn.ELU(), nn.Tanh()], ids=str)
def test_large_inputs_agree_when_exponentials_overflow(layer):
    module = Net(lambda m, hidden: m.layer(hidden), layer=layer)
    module.layer = layer
    with np.errstate(over="ignore"):  # the program's callers silence NumPy, like torch is silent
        assert_agrees(module, scale=1e4)


def test_dropout_is_the_identity_when_acting():
    module = Net(lambda m, hidden: m.layer(hidden), layer=nn.Dropout(0.9)).train()
    found = program_of(module).run([observation()])
    np.testing.assert_allclose(found, wanted(module.eval(), observation()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "pack",
    [
        lambda p, v: (p, v),
        lambda p, v: {"value": v, "action_logits": p},
        lambda p, v: PolicyOutput(p, v, {}, {}),
        lambda p, v: PolicyOutput(value=v, dist_params=p, extras={"value": v}, state={}),
    ],
    ids=["pair", "dict", "PolicyOutput", "PolicyOutput by name"],
)
def test_parameters_are_found_when_outputs_differ(pack):
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 1)

        def forward(self, obs):
            return pack(self.actor(obs), self.critic(obs))

    module = Packs()
    found = program_of(module).run([observation()])
    exact = module.actor(torch.from_numpy(observation())).detach().numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_weights_are_copied_when_refreshed_and_not_before():
    module = Net(lambda _, hidden: torch.tanh(hidden))
    program, obs = program_of(module), observation(1)
    old = program.run([obs]).copy()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1
    np.testing.assert_array_equal(program.run([obs]), old)
    program.refresh()
    np.testing.assert_allclose(program.run([obs]), wanted(module, obs), rtol=1e-5, atol=1e-6)


def test_buffers_are_copied_when_refreshed():
    module = Net(lambda m, hidden: hidden * m.gain)
    module.register_buffer("gain", torch.tensor(2.0))
    program, obs = program_of(module), observation(1)
    module.gain.fill_(3.0)
    program.refresh()
    np.testing.assert_allclose(program.run([obs]), wanted(module, obs), rtol=1e-5, atol=1e-6)


def test_observation_is_left_alone_when_run():
    program = program_of(Net(lambda _, hidden: torch.relu(hidden)))
    obs = observation(1)
    program.run([obs])
    np.testing.assert_array_equal(obs, observation(1))


def branches(_, hidden):
    return hidden if hidden.sum() > 0 else -hidden


def in_place_beside(_, hidden):
    hidden.mul_(2.0)
    return hidden


REFUSED = {
    "convolution": (lambda m, h: m.layer(h[:, None])[:, 0], nn.Conv1d(1, 1, 1), "conv1d"),
    "normalisation": (lambda m, h: m.layer(h), nn.LayerNorm(4), "layer_norm"),
    "branch on data": (branches, None, "depend on the values"),
    "dropout while acting": (lambda _, h: functional.dropout(h), None, "dropout"),
    "unknown function": (lambda _, h: torch.special.erf(h), None, "erf"),
    "unknown method": (lambda _, h: h.cumsum(-1), None, "cumsum"),
    "unknown argument": (lambda _, h: torch.cat([h, h[:0]], out=None), None, "cat"),
    "float64": (lambda _, h: h.to(torch.float64).to(torch.float32), None, "float64"),
    "integers": (lambda _, h: h / torch.tensor([1, 2, 3, 4]), None, "float64"),
    "device": (lambda _, h: h.to("cpu"), None, "to"),
    "in place beside": (in_place_beside, None, "mul_"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_module_is_refused_with_a_reason_when_numpy_has_no_form(name):
    body, layer, reason = REFUSED[name]
    module = Net(body, **({} if layer is None else {"layer": layer}))
    with pytest.raises(ActorError, match=reason):
        program_of(module)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("part", ["", "first"])
def test_module_is_refused_when_hooks_change_it(register, part):
    module = Net(lambda _, hidden: hidden)
    getattr(module.get_submodule(part), register)(lambda *_: None)
    with pytest.raises(ActorError, match="hooks"):
        program_of(module)


def test_numpy_stays_silent_when_callers_ask_for_it():
    module = Net(lambda m, hidden: m.layer(hidden), layer=nn.SiLU())
    program = program_of(module)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        found = program.run([np.full((ROWS, 3), 1e6, np.float32)])
    assert np.isfinite(found).all()
