"""Modules as users write them."""

import torch
from torch import Tensor, nn

from metta.agent.output import PolicyOutput


class Returns(nn.Module):
    """A linear policy whose output passes through `pack(params, value)`."""

    def __init__(self, pack, width: int = 3, inputs: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(inputs, width), nn.Linear(inputs, 1)
        self.pack = pack

    def forward(self, obs):
        return self.pack(self.actor(obs), self.critic(obs))


class Recurrent(nn.Module):
    """A user's own recurrence: a leaky sum, forgotten where an episode starts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(5, 3), nn.Linear(5, 1)

    def initial_state(self, num_rows):
        return {"total": self.actor.weight.new_zeros(num_rows, 5)}

    def forward(self, obs, state, starts):
        total, totals = state["total"], []
        for step in range(len(obs)):
            total = torch.where(starts[step, :, None], 0.0, 0.5 * total) + obs[step]
            totals.append(total)
        hidden = torch.stack(totals)
        return self.output(self.actor(hidden), self.critic(hidden), {"total": total})

    def output(self, params, value, state):
        return PolicyOutput(params, value, state, {})


class Sees(nn.Module):
    """Keeps what it was called with."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(width))

    def forward(self, obs):
        self.seen = obs
        leaf = obs
        while not isinstance(leaf, Tensor):
            leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
        rows = len(leaf)
        return self.logits.expand(rows, -1), self.logits[0].expand(rows)


PACKS = {
    "pair with value [B, 1]": lambda params, value: (params, value),
    "pair with value [B]": lambda params, value: (params, value.squeeze(-1)),
    "dict": lambda params, value: {"action_logits": params, "value": value},
    "PolicyOutput": lambda params, value: PolicyOutput(params, value, {}, {}),
    "PolicyOutput of None": lambda params, value: PolicyOutput(params, value, None, None),
}
