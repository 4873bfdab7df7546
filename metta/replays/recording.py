"""Playing an episode and keeping it: policy + environment -> `Replay`."""

import contextlib
import json
from typing import Any

import numpy as np

from metta.agent.policy import Policy
from metta.agent.policy_record import HasPolicy, policy_of
from metta.curriculum import Task
from metta.envs.factory import row_seeds
from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.vec_env import ObsArrays, StepResult, agents_per_env
from metta.errors import PolicyError
from metta.replays.capture import MAX_STEPS, Scene, open_scene
from metta.replays.replay import Ending, Replay, ReplayInfo
from metta.secrets import scrub_all
from metta.sim.players import evaluated_agents
from metta.sim.simulation import run_episodes
from metta.sim.suite import unfit_spaces
from metta.train.run_config import EvaluationConfig

__all__ = ["record_episode"]

_DEFAULTS = EvaluationConfig()
_MAX_BYTES = 256 * 2**20
"""Limit on all tracks, compressed; the step that reaches it is the last one of a recording."""


def record_episode(  # noqa: PLR0913  # what is played, then how: by name
    policy: Policy | HasPolicy,
    task: Any,
    *,
    seed: int = 0,
    greedy: bool = False,
    npc_policy: Policy | None = None,
    policy_agents_pct: float = 1.0,
    max_seconds: float | None = None,
    max_steps: int = _DEFAULTS.replay_max_steps,
    **about: Any,
) -> Replay:
    """Play one episode in a separate environment and keep every state of it, the last one too.

        replay = record_episode(policy, "CartPole-v1", seed=1)

    The episode has the environment's seed and the random numbers of the first episode that `run_episodes`
    plays with the same `seed`, however many environments it has; so it is that episode, unless a policy's
    numbers are rounded otherwise in a larger batch, or the environment is random beyond its seed. `task`
    is an id, a factory or a `Task`. After `max_steps`, `max_seconds` or 256 MiB of compressed states the
    rest is cut off, and the info records that. `about`: further fields of `ReplayInfo`, such as simulation
    and epoch. `PolicyError` if the policy does not fit. The process's generators are left as they were.
    """
    policy, wanted = policy_of(policy), task if isinstance(task, Task) else Task(task)
    with global_generators_kept(), open_scene(wanted) as scene:
        reason = unfit_spaces(policy, scene.vec_env)
        if reason:
            raise PolicyError(f"the policy cannot play {wanted.name!r}: {reason}")
        num_agents = agents_per_env(scene.vec_env)
        evaluated = evaluated_agents(num_agents, policy_agents_pct, has_npc=npc_policy is not None)
        story = _StepRecorder(scene, num_agents, min(max_steps, MAX_STEPS))
        scene.begin(seed)
        with contextlib.suppress(_Enough):
            run_episodes(
                policy,
                scene.vec_env,
                1,
                seed=seed,
                greedy=greedy,
                max_steps=MAX_STEPS,
                max_seconds=max_seconds,
                npc_policy=npc_policy,
                policy_agents_pct=policy_agents_pct,
                observer=story,
            )
        info = ReplayInfo(
            kind=scene.kind,
            env=wanted.name,
            env_id=wanted.env if isinstance(wanted.env, str) else None,
            env_kwargs=_plain(wanted.env_kwargs),
            fps=scene.fps,
            seed=row_seeds(seed, 1)[0],
            num_agents=num_agents,
            num_steps=story.num_steps,
            ended=story.ended,
            returns=tuple(story.returns.tolist()),
            evaluated=tuple(evaluated.tolist()),
            **about,
        )
        return Replay(info, scene.recorder.finish())


class _Enough(Exception):  # noqa: N818  # nothing went wrong
    """The recording is as long as it may be."""


class _StepRecorder:
    """Observes a simulation of one environment: actions, rewards and states."""

    def __init__(self, scene: Scene, num_agents: int, max_steps: int) -> None:
        self._scene, self._max_steps = scene, max_steps
        self.num_steps = 0
        self.ended: Ending = "cut"
        self.returns = np.zeros(num_agents)

    def __call__(
        self, rows: slice, before: ObsArrays, actions: np.ndarray, result: StepResult
    ) -> None:
        """Record one step."""
        del rows, before  # there is one environment, and the scene records it
        self.num_steps += 1
        self._scene.after_step(actions)
        recorder = self._scene.recorder
        rewards = np.where(result.valid, result.rewards, 0).astype(np.float32)
        self.returns += rewards
        for name, array in (("actions", actions), ("rewards", rewards), ("valid", result.valid)):
            recorder.append(name, array)
        if result.starts.all():
            terminated = result.terminated[result.valid].all()
            self.ended = "terminated" if terminated else "truncated"
        elif self.num_steps >= self._max_steps or recorder.compressed_bytes >= _MAX_BYTES:
            raise _Enough


def _plain(kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments as JSON returns them, without secrets; None if they are not plain data."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(scrub_all(kwargs), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None
    return plain
