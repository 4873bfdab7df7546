"""A network's action branch as a chain of layers, for the C kernels.

The chain is read off recorded calls: observations, perhaps as one-hot codes, go through linear layers and
activations one after the other. Anything else raises `ActorError`: the caller then uses another actor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.agent.actors.numpy_program import calls_behind
from metta.agent.actors.recorded_calls import Call, RecordedCalls, Ref, refs_in
from metta.errors import ActorError
from metta.spaces import ObsLeaf

try:
    import metta.agent._native as _native
except ImportError:  # installed without a compiler: other actors are used
    _native = None

__all__ = ["CNetwork", "Chain", "chain_of", "native_available"]

_LINEAR = 0
_ACTIVATIONS = {"tanh": 1, "relu": 2, "sigmoid": 3, "silu": 4, "elu": 5}
_RESHAPES = ("flatten", "dropout", "unsqueeze", "squeeze")
_CASTS = ("to", "float")

Step = tuple[int, float, Tensor | None, Tensor | None]
"""(kind, alpha of ELU, weight, bias); weights are the live ones."""


def native_available() -> bool:
    """Whether the C kernels of actors were built."""
    return _native is not None


@dataclass(frozen=True)
class Chain:
    """What the C kernels need to know about a network; a `CNetwork` copies the weights when it is made."""

    steps: list[Step]
    one_hot: bool
    """Whether the first layer sees discrete observations as one-hot codes."""
    tail: Tensor | None = None
    """``[K]``, or one for all, behind the outputs of the last layer: log-deviations."""
    tail_width: int = 0

    @property
    def num_outputs(self) -> int:
        """Parameters that the layers give, without the tail."""
        widths = [len(weight) for _, _, weight, _ in self.steps if weight is not None]
        return widths[-1]


class CNetwork:
    """A chain with its weights, copied into the memory of the C kernels.

    network = CNetwork(chain, leaf, moments=None, clip=10.0)
    network.forward(obs, params)                       # [n, ...] -> [n, P], without the tail
    network.sample(obs, actions, params, noise, mask)  # [n, ...] -> [n], for discrete actions

    Each call works in the network's own memory, under the GIL: threads take turns. `capsule` is
    what environments with fused rollouts take, which run without the GIL and need exclusive use of it.
    """

    def __init__(
        self,
        chain: Chain,
        leaf: ObsLeaf,
        moments: tuple[np.ndarray, np.ndarray] | None,
        clip: float,
        *,
        portable: bool = False,
    ) -> None:
        if _native is None:
            raise ActorError("the C kernels of actors were not built (metta.agent._native)")
        size = int(np.prod(leaf.shape, dtype=np.int64))
        firsts = np.array(leaf.starts, np.int64) if chain.one_hot else None
        categories = np.array(leaf.categories, np.int64) if chain.one_hot else None
        shift, scale = (None, None) if moments is None else map(np.ravel, moments)
        steps = [(kind, alpha, _array(w), _array(bias)) for kind, alpha, w, bias in chain.steps]
        try:
            self.capsule: Any = _native.make(
                size, shift, scale, clip, firsts, categories, steps, portable
            )
        except ValueError as error:
            raise ActorError(str(error)) from error
        self._forward, self._sample = _native.forward, _native.sample

    def forward(self, obs: np.ndarray, params: np.ndarray) -> None:
        """Write parameters ``[n, P]`` float32 of observations ``[n, ...]``."""
        self._forward(self.capsule, obs, params)

    def sample(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        params: np.ndarray,
        noise: np.ndarray,
        mask: np.ndarray | None,
    ) -> None:
        """Write parameters, and the actions ``[n]`` int64 that Gumbel noise ``[n, P]`` makes of them."""
        self._sample(self.capsule, obs, actions, params, noise, mask)


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.detach().contiguous().numpy()


def chain_of(recorded: RecordedCalls, output: int, leaf: ObsLeaf) -> Chain:
    """The layers behind an output, in order; `leaf` is the observation that they take."""
    calls = calls_behind(recorded, output)
    made_by = {call.results: call for call in calls if isinstance(call.results, int)}
    current, tail, tail_width = _without_tail(recorded, output, made_by)
    steps: list[Step] = []
    one_hot = False
    # backwards in order, because a call that works in place has the number of its argument
    for call in reversed(calls):
        if call.results != current:
            continue
        if call.name == "eq":
            one_hot, current = True, _coded(call, made_by, leaf)
            continue
        if not isinstance(call.args[0], Ref) or len([*refs_in(call.args)]) > 1:
            raise ActorError(f"operation {call.name} is not called on one tensor")
        if call.name == "linear":
            steps.append(_linear(recorded, call))
        elif call.name in _ACTIVATIONS:
            steps.append((_ACTIVATIONS[call.name], _alpha(call), None, None))
        else:
            _require_unchanged(recorded, call)
        current = call.args[0].number
    if current not in recorded.inputs:
        raise ActorError("the layers do not begin at the observation")
    steps.reverse()
    if not any(step[0] == _LINEAR for step in steps) or (one_hot and steps[0][0] != _LINEAR):
        raise ActorError("the action parameters do not come from linear layers")
    if leaf.kind == "discrete" and not one_hot and any(leaf.starts):
        raise ActorError("discrete observations that begin elsewhere than at 0 need one-hot codes")
    return Chain(steps, one_hot, tail, tail_width)


def _without_tail(
    recorded: RecordedCalls, output: int, made_by: dict[int, Call]
) -> tuple[int, Tensor | None, int]:
    """The output of the last layer, the constants that are put behind it, and how many they are."""
    last = made_by.get(output)
    if last is None or last.name != "cat":
        return output, None, 0
    parts = last.args[0]
    if len(parts) == 2 and all(isinstance(part, Ref) for part in parts):
        behind = made_by.get(parts[1].number)
        if behind is not None and behind.name == "expand_as" and isinstance(behind.args[0], Tensor):
            width = recorded.layouts[behind.results][0][-1]
            return parts[0].number, behind.args[0], width
    raise ActorError("operation cat joins something that is not a chain of layers")


def _linear(recorded: RecordedCalls, call: Call) -> Step:
    source, weight, bias = (*call.args, None)[:3]
    if len(recorded.layouts[source.number][0]) != 2:
        raise ActorError("a linear layer is called on more than one vector per row")
    return _LINEAR, 0.0, weight, bias


def _alpha(call: Call) -> float:
    alpha = call.args[1] if len(call.args) > 1 else call.options.get("alpha", 1.0)
    return float(alpha)


def _coded(call: Call, made_by: dict[int, Call], leaf: ObsLeaf) -> int:
    """What a one-hot code is made of; `ActorError` if it is not a plain code of every element."""
    chosen, codes = call.args
    select = made_by.get(chosen.number) if isinstance(chosen, Ref) else None
    if leaf.kind == "discrete" and select is not None and select.name == "index_select":
        source, _, elements = select.args
        expected = [(at, code) for at, n in enumerate(leaf.categories) for code in range(n)]
        given = isinstance(elements, Tensor) and isinstance(codes, Tensor)
        if given and torch.stack([elements, codes], -1).tolist() == [*map(list, expected)]:
            number: int = source.number
            return number
    raise ActorError("operation eq is not the one-hot code of discrete observations")


def _require_unchanged(recorded: RecordedCalls, call: Call) -> None:
    """Reshapes and casts are no-ops in C, as long as each row keeps its numbers in their order."""
    if isinstance(call.results, int):
        after, dtype = recorded.layouts[call.results]
        before, _ = recorded.layouts[call.args[0].number]
        if call.name in _CASTS and dtype == torch.float32:
            return
        same = after[:1] == before[:1] and after.numel() == before.numel()
        if call.name in _RESHAPES and same and not call.options.get("training"):
            return
    raise ActorError(f"operation {call.name} has no C form")
