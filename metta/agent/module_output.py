"""What a policy's module may return, and the checks that it does."""

from typing import Any

from torch import Tensor

from metta.agent.output import PolicyOutput, State
from metta.errors import PolicyError

__all__ = ["read_output", "require_shapes"]

_ACCEPTED = (
    "(logits, value), a dict with 'action_logits' and 'value', or a PolicyOutput; a recurrent module "
    "has initial_state(num_rows), is called as module(obs, state, starts) and returns its new state: "
    "in the dict as 'state', or in the PolicyOutput"
)


def read_output(raw: Any) -> PolicyOutput:
    """A module's output as a `PolicyOutput`; anything metta cannot read is a `PolicyError`."""
    output = None
    if isinstance(raw, PolicyOutput):
        output = PolicyOutput(raw[0], raw[1], raw.state or {}, raw.extras or {})
    elif isinstance(raw, tuple) and len(raw) == 2:
        output = PolicyOutput(*raw, {}, {})
    elif isinstance(raw, dict) and {"action_logits", "value"} <= raw.keys():
        extras = {k: v for k, v in raw.items() if k not in ("action_logits", "value", "state")}
        output = PolicyOutput(raw["action_logits"], raw["value"], raw.get("state") or {}, extras)
    if output is not None and isinstance(output[0], Tensor) and isinstance(output[1], Tensor):
        return output
    raise PolicyError(
        f"the policy module returned {_describe(raw)}, which metta cannot read; return {_ACCEPTED}"
    )


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
