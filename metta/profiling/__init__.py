"""Where the time of a run goes: its phases, a flame graph of its stacks, a trace of its operations.

``metta profile`` is its command.
"""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.profiling.flame_svg import flame_graph
    from metta.profiling.phase_timer import PhaseTimer
    from metta.profiling.profile_run import Profile, profile_run
    from metta.profiling.stack_sampler import StackSampler

__all__ = ["PhaseTimer", "Profile", "StackSampler", "flame_graph", "profile_run"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "PhaseTimer": "metta.profiling.phase_timer",
        "Profile": "metta.profiling.profile_run",
        "StackSampler": "metta.profiling.stack_sampler",
        "flame_graph": "metta.profiling.flame_svg",
        "profile_run": "metta.profiling.profile_run",
    },
)
