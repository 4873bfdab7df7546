"""`RolloutCollector`: act, step, record."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.actor import make_actor
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.vec_env import (
    FusedVecEnv,
    ObsArrays,
    StepResult,
    TaskedVecEnv,
    VecEnv,
    fused_env_of,
    gives_finite,
    group_slices,
)
from metta.errors import EnvError, MettaWarning, PolicyError
from metta.ops.diagnostics import all_finite
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.episodes import EpisodeMeter
from metta.rl.collect.task_feed import TaskFeed
from metta.seeding import derive_seed, numpy_generator, seed_torch
from metta.stateful import digest_of

__all__ = ["CollectedPart", "RolloutCollector", "report_scores"]

_ENDLESS_STEPS = 10_000


class CollectedPart(NamedTuple):
    """What a rollout gives apart from its columns."""

    stats: dict[str, list[float]]
    """Lists with one number per episode that ended."""
    scores: list[tuple[int, float]]
    """(task, score) of episodes, for the curriculum."""
    num_steps: int
    """Valid agent steps."""


def report_scores(
    curriculum: Curriculum | None, scores: Sequence[tuple[int, float]]
) -> dict[str, list[float]]:
    """Tell the curriculum how episodes of its tasks ended; returns its metrics."""
    if curriculum is None:
        return {}
    for task, score in scores:
        curriculum.complete(task, score)
    return {name: [value] for name, value in curriculum.metrics().items()}


class RolloutCollector:
    """Fills a `RolloutBuffer` from an environment; never learns.

        collector = RolloutCollector(vec_env, policy, experience, "cpu")
        stats, num_steps = collector.collect()

    Episodes continue from one rollout to the next. The noise of rollout k is a function of (seed, shard,
    k).
    """

    state_name = "collector"
    state_version = 2

    def __init__(  # noqa: PLR0913  # four parts by position, then how they are used: by name
        self,
        vecenv: Any,
        policy: Policy,
        experience: RolloutBuffer,
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
        shard: int = 0,
        actor: str = "auto",
        curriculum: Curriculum | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            raise PolicyError(
                f"RolloutCollector needs a metta Policy, got {type(policy).__name__}; wrap the module: "
                "Policy(module, env.observation_space, env.action_space)"
            )
        self.vec_env: VecEnv = make_vec_env(vecenv)
        self.policy = policy.to(device) if torch.device(device) != policy.device else policy
        # environments with opponents need the learner, to add it to their pool
        self._begin_rollout: Callable[[int, Policy], None] | None = getattr(
            self.vec_env, "begin_rollout", None
        )
        self.seed, self.shard = seed, shard
        self.num_rollouts = 0
        self.groups = group_slices(self.vec_env.num_rows, self.vec_env.num_groups)
        self.actor = make_actor(actor, policy, self.groups[0].stop)
        self.meter = EpisodeMeter(self.vec_env.num_rows)
        self.task_feed = self._feed_of(curriculum)
        self.experience = experience
        self._states: list[State] = []
        self._warned_endless = False
        self._resets: int | None = None
        self._carry: dict[str, Any] | None = None
        self._envs_out_of_sync = False
        """Whether the carried observations are not those that the environments showed last."""

    def _feed_of(self, curriculum: Curriculum | None) -> TaskFeed | None:
        """Tasks come from a curriculum that has several of them."""
        if curriculum is None or curriculum.is_single:
            return None
        # not isinstance: from Python 3.12 on, protocols do not see what a wrapper passes on
        if not hasattr(self.vec_env, "next_tasks"):
            raise EnvError(
                f"{type(self.vec_env).__name__} plays one task only, but the curriculum has "
                f"{len(curriculum.tasks)}; make it of them: make_vec_env(curriculum.tasks, ...)"
            )
        tasked = cast("TaskedVecEnv", self.vec_env)
        return TaskFeed(tasked, curriculum, seed=self.seed, shard=self.shard)

    @property
    def actor_kind(self) -> str:
        """The actor that was chosen: ``eager``, ``traced``, ``numpy`` or ``c``."""
        return self.actor.kind

    @property
    def curriculum(self) -> Curriculum | None:
        """What tasks come from; None where there is only one."""
        return None if self.task_feed is None else self.task_feed.curriculum

    @property
    def num_episodes(self) -> int:
        """Episodes that ended so far."""
        return self.meter.num_episodes

    @property
    def experience(self) -> RolloutBuffer:
        """The buffer that the next rollout goes into."""
        return self._experience

    @experience.setter
    def experience(self, buffer: RolloutBuffer) -> None:
        if buffer.num_rows != self.vec_env.num_rows:
            raise EnvError(
                f"the buffer has {buffer.num_rows} rows, the environment {self.vec_env.num_rows}"
            )
        self._experience = buffer
        self._slots = [buffer.obs_slots(rows) for rows in self.groups]

    def collect(self) -> tuple[dict[str, list[float]], int]:
        """One rollout of the buffer's horizon; returns episode statistics and valid agent steps.

        Statistics are lists with one number per episode that ended: ``episode_return``,
        ``episode_length``, and whatever numbers the environment reported at an episode's end.
        """
        part = self.collect_part()
        return part.stats | report_scores(self.curriculum, part.scores), part.num_steps

    @torch.no_grad()
    def collect_part(self) -> CollectedPart:
        """The same, without reporting to the curriculum, which may wait for other parts of the rollout."""
        buffer = self.experience
        epoch = self.num_rollouts
        if self._begin_rollout is not None:
            self._begin_rollout(epoch, self.policy)
        seed_torch(
            derive_seed(self.seed, "collect", rank=self.shard, epoch=epoch), self.policy.device
        )
        generator = numpy_generator(self.seed, "noise", rank=self.shard, epoch=epoch)
        noise = draw_noise(
            self.policy.action_spec, generator, buffer.horizon, self.vec_env.num_rows
        )
        with evaluating(self.policy):
            self.actor.refresh(self.policy)
            self._begin(buffer)
            infos = self._run(buffer, noise)
            if not gives_finite(self.vec_env):
                self._check_finite(buffer)
            buffer.finalize(self.policy, self.actor.produces, self.actor.value_source)
        self.num_rollouts += 1
        stats, feed = self.meter.update(buffer, infos), self.task_feed
        scores = [] if feed is None else feed.after_rollout(self.meter.last_ended, buffer.lost)
        self._warn_when_endless()
        return CollectedPart(stats, scores, int(buffer.valid.sum()))

    def _begin(self, buffer: RolloutBuffer) -> None:
        """Put the observations that come first into slot 0: of a reset, or carried over."""
        if self._envs_out_of_sync:
            self.resume_with_fresh_episodes()
        buffer.begin()
        first: dict[str, np.ndarray] = {key: leaf.numpy()[0] for key, leaf in buffer.obs.items()}
        if self._carry is None:
            if self.task_feed is not None:
                self.task_feed.before_reset()
            result = self.vec_env.reset(self._reset_seeds(), first)
            if self.task_feed is not None:
                self.task_feed.after_reset()
            self._resets = self.vec_env.num_resets
            buffer.start_array[0] = True
            if buffer.mask_array is not None:
                buffer.mask_array[0] = result.action_mask
            self._states = [self.policy.initial_state(r.stop - r.start) for r in self.groups]
            return
        if self._resets is not None and self.vec_env.num_resets != self._resets:
            raise EnvError(
                "this collector's environment was reset elsewhere (run_episodes, another collector?), "
                "so its episodes cannot continue; give each its own environment, e.g. by make_vec_env"
            )
        for key, leaf in first.items():
            leaf[...] = self._carry["obs"][key]
        buffer.start_array[0] = self._carry["starts"]
        if buffer.mask_array is not None:
            buffer.mask_array[0] = self._carry["masks"]

    @property
    def is_under_way(self) -> bool:
        """Whether episodes continue in the next rollout."""
        return self._carry is not None

    @property
    def envs_out_of_sync(self) -> bool:
        """Whether fresh episodes must begin, because environments are not where this collector was."""
        return self._envs_out_of_sync

    def continues_from(self, seen: ObsArrays | None) -> bool:
        """The environments were restored to the collector's position, and show `seen` (None: unknown).

        True where that is what the collector carries: episodes continue.
        """
        carried = (self._carry or {}).get("obs")
        if carried is None or (seen is not None and digest_of(dict(seen)) != digest_of(carried)):
            return False
        self._envs_out_of_sync, self._resets = False, self.vec_env.num_resets
        return True

    def resume_with_fresh_episodes(self) -> None:
        """Begin new episodes in the next rollout; unfinished ones are dropped and not counted."""
        self._carry, self._envs_out_of_sync = None, False
        self.meter.returns[:] = 0.0
        self.meter.lengths[:] = 0

    def _reset_seeds(self) -> list[int]:
        """One seed per row; a reset in the middle of a run does not repeat the run's first episodes."""
        seed = self.seed
        if self.num_rollouts:
            seed = derive_seed(seed, "fresh episodes", rank=self.shard, epoch=self.num_rollouts)
        return row_seeds(seed, self.vec_env.num_rows, rank=self.shard)

    def _run(self, buffer: RolloutBuffer, noise: np.ndarray) -> list[Any]:
        """All steps of a rollout; the last observations and states go into the carry."""
        infos: list[Any] = []
        fused = self._fused_env()
        if fused is not None:
            self._run_fused(fused, buffer, noise, infos)
        else:
            self._run_in_turns(buffer, noise, infos)
        last = buffer.horizon
        self._carry = {
            "obs": {key: leaf.numpy()[last].copy() for key, leaf in buffer.obs.items()},
            "starts": buffer.start_array[last].copy(),
            "masks": None if buffer.mask_array is None else buffer.mask_array[last].copy(),
        }
        return infos

    def _run_in_turns(self, buffer: RolloutBuffer, noise: np.ndarray, infos: list[Any]) -> None:
        """The loop: while one group steps, the policy acts for the next."""
        for step in range(buffer.horizon):
            for group, rows in enumerate(self.groups):
                if step:
                    self._receive(buffer, step - 1, group, rows, infos)
                self._act(buffer, step, group, rows, noise)
        for group, rows in enumerate(self.groups):
            self._receive(buffer, buffer.horizon - 1, group, rows, infos)
            buffer.store_state(buffer.horizon, rows, self._states[group])

    def _run_fused(
        self, env: FusedVecEnv, buffer: RolloutBuffer, noise: np.ndarray, infos: list[Any]
    ) -> None:
        """The same loop in C; steps in which something happened are recorded here like all others."""
        arrays, rows, step = buffer.rollout_arrays(noise), slice(0, buffer.num_rows), 0
        buffer.valid.fill_(True)
        while step < buffer.horizon:
            step, result = env.run_steps(self.actor.fused_actor, arrays, step)
            if result is not None:
                self._take_in(buffer, step - 1, rows, result, {}, infos)

    def _fused_env(self) -> FusedVecEnv | None:
        """The environment, if actor and environment can take turns without Python."""
        return None if self.actor.fused_actor is None else fused_env_of(self.vec_env)

    def _act(
        self, buffer: RolloutBuffer, step: int, group: int, rows: slice, noise: np.ndarray
    ) -> None:
        writer, masks = self.actor.buffer_writer, buffer.mask_array
        if writer is not None:
            (leaf,) = self._slots[group][step].values()
            mask = None if masks is None else masks[step, rows]
            actions, params = buffer.action_slots(step, rows)
            writer.act_into(leaf, mask, noise[step, rows], actions, params)
            self.vec_env.send(group, self.policy.action_spec.to_env(actions))
            return
        buffer.store_state(step, rows, self._states[group])
        produced, self._states[group] = self.actor.act(
            self._slots[group][step],
            self._states[group],
            buffer.start_array[step, rows],
            None if masks is None else masks[step, rows],
            noise[step, rows],
        )
        stored = buffer.store_action(step, rows, produced)
        self.vec_env.send(group, self.policy.action_spec.to_env(stored))

    def _receive(
        self, buffer: RolloutBuffer, step: int, group: int, rows: slice, infos: list[Any]
    ) -> None:
        result: StepResult = self.vec_env.recv(group, self._slots[group][step + 1])
        self._take_in(buffer, step, rows, result, self._states[group], infos)

    def _take_in(
        self,
        buffer: RolloutBuffer,
        step: int,
        rows: slice,
        result: StepResult,
        state: State,
        infos: list[Any],
    ) -> None:
        """What one step of some rows gave; `state` is the recurrent one in which it was reached."""
        buffer.store_step(step, rows, result, state)
        if self.task_feed is not None and result.starts.any():
            self.task_feed.after_step(step, rows, result.starts)
        if result.infos:
            infos += [(step, rows.start + row, numbers) for row, numbers in result.infos]

    def _check_finite(self, buffer: RolloutBuffer) -> None:
        """NaN of a user's own `VecEnv` stops here, before it could reach a policy's weights."""
        # in rows that were not stepped it may be NaN
        checked = {"reward": buffer.rewards.where(buffer.valid, 0.0)}
        for key, leaf in buffer.obs.items():
            if leaf.dtype.is_floating_point:
                checked[f"observation {key!r}"] = leaf
        for name, tensor in checked.items():
            if all_finite(tensor):
                continue
            step, row = (~tensor.isfinite().flatten(2).all(-1) if tensor.dim() > 2
                         else ~tensor.isfinite()).nonzero()[0].tolist()  # fmt: skip
            raise EnvError(
                f"environment row {row} returned a non-finite {name} at step {step} of rollout "
                f"{self.num_rollouts}: {tensor[step, row].tolist()}; nothing was learned from it. "
                "Fix the environment, or clean its output with a gymnasium wrapper"
            )

    def _warn_when_endless(self) -> None:
        if self._warned_endless or self.meter.num_episodes > 0:
            return
        if int(self.meter.lengths.max()) >= _ENDLESS_STEPS:
            self._warned_endless = True
            warnings.warn(
                f"no episode has ended in {int(self.meter.lengths.max()):,} steps per environment: "
                "there is no return to report, and nothing resets. Give the environment a time limit, "
                "e.g. gymnasium.make(id, max_episode_steps=1000) or the TimeLimit wrapper",
                MettaWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Counters, carried observations and recurrent states, and unfinished episodes."""
        return {
            "num_rollouts": self.num_rollouts,
            "carry": self._carry or {},
            "states": self._states,
            "meter": self.meter.state_dict(),
            "tasks": {} if self.task_feed is None else self.task_feed.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `EnvironmentState` brings the environments back.

        Without it, episodes continue where the environments here showed the carried observations last;
        elsewhere the next rollout begins fresh ones.
        """
        same = digest_of(state["carry"]) == digest_of(self._carry or {})
        self._envs_out_of_sync = self._envs_out_of_sync or not same
        self.num_rollouts = int(state["num_rollouts"])
        self._carry = dict(state["carry"]) or None
        device = self.policy.device
        self._states = [{k: v.to(device) for k, v in part.items()} for part in state["states"]]
        self.meter.load_state_dict(state["meter"])
        if self.task_feed is not None:
            self.task_feed.load_state_dict(state["tasks"])
