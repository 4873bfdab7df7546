"""Recurrent modules as users write them: nn.LSTM, nn.GRU and cells, with and without `initial_state`."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.agent.policy import Policy
from metta.envs.toy import MemoryEnv
from metta.errors import PolicyError
from metta.rl.ppo_trainer import PPOTrainer

ENV = MemoryEnv()
SPACES = ENV.observation_space, ENV.action_space
WIDTH, ACTIONS, ROWS, STEPS = SPACES[0].shape[0], int(SPACES[1].n), 3, 6  # type: ignore[index,attr-defined]  # of this environment


class OwnNet(nn.Module):
    """Memory of torch's own, the usual way: no `initial_state`, no `starts`."""

    def __init__(self, memory: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory = memory(WIDTH, 8, **options)
        self.actor, self.critic = nn.Linear(8, ACTIONS), nn.Linear(8, 1)

    def forward(self, obs: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Any]:
        hidden, state = self.memory(obs, state)
        return self.actor(hidden), self.critic(hidden), state


class WithStarts(OwnNet):
    """The same numbers, with its own zeros and its own forgetting."""

    def initial_state(self, num_rows: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, num_rows, 8), torch.zeros(1, num_rows, 8)

    def forward(self, obs: Tensor, state: Any, starts: Tensor) -> tuple[Tensor, Tensor, Any]:  # type: ignore[override]  # another way to be called
        outputs = []
        for step in range(len(obs)):
            state = tuple(part.masked_fill(starts[step, None, :, None], 0.0) for part in state)
            hidden, state = self.memory(obs[step : step + 1], state)
            outputs.append(hidden)
        whole = torch.cat(outputs)
        return self.actor(whole), self.critic(whole), state


class Cell(OwnNet):
    """A state that is one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRUCell(WIDTH, 8)  # type: ignore[assignment]  # a cell in place of a layer

    def forward(self, obs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        after = self.memory(obs[0], state)
        return self.actor(after)[None], self.critic(after)[None], after


NETS = {
    "lstm": OwnNet,
    "two layers": lambda: OwnNet(num_layers=2),
    "gru": lambda: OwnNet(nn.GRU),
    "starts": WithStarts,
    "cell": Cell,
}


def sequences() -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(1)
    starts = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    starts[0] = starts[3, 1] = True
    return {"obs": torch.randn(STEPS, ROWS, WIDTH)}, starts


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_rows_forget_and_carry_their_state_when_a_users_module_is_recurrent(net: Any) -> None:
    policy = Policy(net(), *SPACES)
    obs, starts = sequences()
    assert policy.is_recurrent
    whole = policy(obs, policy.initial_state(ROWS), starts)
    assert all(len(part) == ROWS for part in whole.state.values())
    state, steps = policy.initial_state(ROWS), []
    for step in range(STEPS):
        output = policy({"obs": obs["obs"][step, None]}, state, starts[step, None])
        state = output.state
        steps.append(output.dist_params[0])
    torch.testing.assert_close(torch.stack(steps), whole.dist_params, rtol=0, atol=1e-6)
    torch.testing.assert_close(state, whole.state, rtol=0, atol=1e-6)
    alone = policy({"obs": obs["obs"][3:, 1:2]}, policy.initial_state(1), starts[3:, 1:2])
    torch.testing.assert_close(alone.dist_params[:, 0], whole.dist_params[3:, 1], rtol=0, atol=1e-6)
    assert not torch.equal(
        whole.dist_params[3, 0], policy({"obs": obs["obs"][3:4]}).dist_params[0, 0]
    )


def test_both_ways_of_forgetting_give_the_same_numbers() -> None:
    obs, starts = sequences()
    found = [Policy(net(), *SPACES)(obs, None, starts) for net in (OwnNet, WithStarts)]
    torch.testing.assert_close(found[0].dist_params, found[1].dist_params, rtol=0, atol=1e-6)


def test_a_copy_of_a_policy_calls_its_own_module() -> None:
    policy = Policy(OwnNet(), *SPACES)
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert policy(sequences()[0]).dist_params.abs().sum() > 0
    assert other(sequences()[0]).dist_params.abs().sum() == 0


@pytest.mark.parametrize("net", [OwnNet, Cell, WithStarts])
def test_training_resumes_to_the_bit_when_the_state_is_a_users(net: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seed": 3, "horizon": 32, "num_envs": 4, "verbose": False}
    with PPOTrainer(net(), MemoryEnv, **settings) as trainer:
        before = trainer.policy.parameter_hash()
        trainer.train(256)
        assert trainer.policy.parameter_hash() != before
        trainer.save(tmp_path)
        trainer.train(256)
        with PPOTrainer(net(), MemoryEnv, **settings) as resumed:
            resumed.load(tmp_path)
            resumed.train(256)
            assert resumed.digest() == trainer.digest()


def test_a_module_is_refused_when_no_axis_of_its_state_counts_rows() -> None:
    with pytest.raises(PolicyError, match=r"\(1, 1, 8\) for 3 rows.*without batch_first"):
        Policy(OwnNet(batch_first=True), *SPACES)


def test_a_module_is_refused_when_it_takes_a_state_and_returns_none() -> None:
    class Forgetful(OwnNet):
        def forward(self, obs: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # the mistake
            return super().forward(obs, state)[:2]

    with pytest.raises(PolicyError, match=r"returns none; return \(logits, value, state\)"):
        Policy(Forgetful(), *SPACES)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_training_is_refused_when_a_network_is_not_in_float32(kind: torch.dtype) -> None:
    with pytest.raises(PolicyError, match=rf"OwnNet has parameters of {kind}.*module\.float\(\)"):
        PPOTrainer(OwnNet().to(kind), MemoryEnv, horizon=8)
