"""Arrays -> actions: policies, their parts, and actors derived from them."""

from metta.agent.actions.action_spec import ActionSpec, action_spec_of, draw_noise
from metta.agent.actors.actor import Actor, CActor, EagerActor, NumpyActor, TracedActor, make_actor
from metta.agent.factory import as_policy, make_policy
from metta.agent.output import Obs, PolicyOutput, State
from metta.agent.policy import Policy

__all__ = [
    "ActionSpec",
    "Actor",
    "CActor",
    "EagerActor",
    "NumpyActor",
    "Obs",
    "Policy",
    "PolicyOutput",
    "State",
    "TracedActor",
    "action_spec_of",
    "as_policy",
    "draw_noise",
    "make_actor",
    "make_policy",
]
