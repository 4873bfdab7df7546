"""What a policy's module may return, and the checks that it does."""

from typing import Any

from torch import Tensor

from metta.agent.output import PolicyOutput, State
from metta.errors import PolicyError

__all__ = ["read_output", "require_shapes"]

_ACCEPTED = (
    "(logits, value), a dict with 'action_logits' and 'value', or a PolicyOutput; a recurrent module "
    "takes (obs, state) or (obs, state, starts) and returns its new state: (logits, value, state), in "
    "the dict as 'state', or in the PolicyOutput"
)


def read_output(raw: Any) -> PolicyOutput:
    """A module's output as a `PolicyOutput`, with its state as the module has it.

    Anything metta cannot read is a `PolicyError`.
    """
    output = None
    if isinstance(raw, PolicyOutput):
        output = PolicyOutput(raw[0], raw[1], _state(raw.state), raw.extras or {})
    elif isinstance(raw, tuple) and len(raw) in (2, 3):
        output = PolicyOutput(raw[0], raw[1], _state(raw[2] if len(raw) == 3 else None), {})
    elif isinstance(raw, dict) and {"action_logits", "value"} <= raw.keys():
        extras = {k: v for k, v in raw.items() if k not in ("action_logits", "value", "state")}
        output = PolicyOutput(raw["action_logits"], raw["value"], _state(raw.get("state")), extras)
    kinds = (Tensor, Tensor, Tensor | tuple | list | dict)
    if output is not None and all(map(isinstance, output, kinds)):
        return output
    raise PolicyError(
        f"the policy module returned {_describe(raw)}, which metta cannot read; return {_ACCEPTED}"
    )


def _state(given: Any) -> Any:
    return {} if given is None else given


def require_shapes(output: PolicyOutput, lead: tuple[int, ...], state: State) -> None:
    """Parameters ``[*lead, P]``, one value per row, and a state like the one that went in."""
    rows = " x ".join(str(size) for size in lead)
    if output.dist_params.shape[:-1] != lead:
        raise PolicyError(
            f"the policy module returns action parameters of shape {tuple(output.dist_params.shape)} "
            f"for {rows} rows; it must return one vector per row"
        )
    if output.value.shape not in (lead, (*lead, 1)):
        raise PolicyError(
            f"the policy module returns values of shape {tuple(output.value.shape)} for {rows} rows; "
            "it must return one value per row"
        )
    found, wanted = _shapes(output.state), _shapes(state)
    if found != wanted:
        raise PolicyError(
            f"the policy module starts from a state of {wanted} but returns one of {found}; "
            f"return {_ACCEPTED}"
        )


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(part.shape) for key, part in state.items()}


def _describe(raw: Any) -> str:
    if isinstance(raw, tuple | list):
        return f"a {type(raw).__name__} of {[type(part).__name__ for part in raw]}"
    if isinstance(raw, dict):
        return f"a dict of { {key: type(part).__name__ for key, part in raw.items()} }"
    return f"a {type(raw).__name__}"
