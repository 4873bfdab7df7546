"""Recurrent cores, written out so that they reset inside a sequence and compile as they are."""

import torch
from torch import Tensor, nn

__all__ = ["CORES", "GRUCore", "LSTMCore", "RecurrentCore"]

State = dict[str, Tensor]


class RecurrentCore(nn.Module):
    """A recurrence over ``[T, N, F]`` whose state returns to zero wherever an episode starts.

    Subclasses give the gates. Input projections of all steps are one matrix product; only the
    hidden-to-hidden part is a loop.
    """

    num_gates: int
    state_names: tuple[str, ...]

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.input_projection = nn.Linear(input_size, self.num_gates * hidden_size)
        self.hidden_projection = nn.Linear(hidden_size, self.num_gates * hidden_size)
        for layer in (self.input_projection, self.hidden_projection):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def initial_state(self, num_rows: int) -> State:
        """Zeros ``[N, H]``."""
        like = self.hidden_projection.weight
        return {name: like.new_zeros(num_rows, self.hidden_size) for name in self.state_names}

    def forward(self, features: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """Outputs ``[T, N, H]`` and the state after the last step.

        Where ``starts[t, n]`` is set, row n forgets its state before it sees step t.
        """
        projected = self.input_projection(features)
        forget = starts.unsqueeze(-1)
        parts = tuple(state[name] for name in self.state_names)
        outputs = []
        for step in range(len(projected)):
            # filled, not multiplied by zero: that would keep a NaN of the episode before
            parts = tuple(part.masked_fill(forget[step], 0.0) for part in parts)
            parts = self._cell(projected[step], parts)
            outputs.append(parts[0])
        return torch.stack(outputs), dict(zip(self.state_names, parts, strict=True))

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError


class LSTMCore(RecurrentCore):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gate).

    i, f, g, o = W x + U h + b
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g);  h' = sigmoid(o) * tanh(c')
    """

    num_gates = 4
    state_names = ("hidden", "cell")

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = state
        gates = projected + self.hidden_projection(hidden)
        admit, forget, candidate, emit = gates.chunk(4, -1)
        cell = forget.sigmoid() * cell + admit.sigmoid() * candidate.tanh()
        return emit.sigmoid() * cell.tanh(), cell


class GRUCore(RecurrentCore):
    """Gated recurrent unit (Cho et al. 2014, in the form of cuDNN and `torch.nn.GRU`).

    r = sigmoid(x_r + h_r);  z = sigmoid(x_z + h_z);  n = tanh(x_n + r * h_n)
    h' = (1 - z) * n + z * h
    """

    num_gates = 3
    state_names = ("hidden",)

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = state
        input_reset, input_update, input_new = projected.chunk(3, -1)
        hidden_reset, hidden_update, hidden_new = self.hidden_projection(hidden).chunk(3, -1)
        reset = (input_reset + hidden_reset).sigmoid()
        update = (input_update + hidden_update).sigmoid()
        candidate = (input_new + reset * hidden_new).tanh()
        return ((1 - update) * candidate + update * hidden,)


CORES: dict[str, type[RecurrentCore]] = {"lstm": LSTMCore, "gru": GRUCore}
