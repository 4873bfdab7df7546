"""What serial and multi-process environments share: spaces, tasks, a log of actions, saving and loading."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from metta.envs.call_order import CallOrder
from metta.envs.restore.episode_log import EpisodeLog
from metta.envs.restore.restore_check import check_restore
from metta.envs.restore.row_places import RowPlace
from metta.envs.restore.saved_envs import (
    boundary_state,
    class_of_state,
    repeat_state,
    snapshot_rows,
    snapshot_state,
)
from metta.envs.rows.row_spec import EnvFactory, GymEnv, RowSpec
from metta.envs.rows.tasked_env import RowTasks
from metta.envs.vec_env import ObsArrays, RestoreClass, RestoreSupport, group_slices

__all__ = ["LoggedRows"]


class LoggedRows:
    """The part of a `RestorableVecEnv` that does not step: its backends step, and place rows.

    Actions are logged from the first reset on, until they cannot be needed: a class other than `repeat` was
    found, and no worker may be started again (`may_restart`).
    """

    gives_finite = True

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        spec: RowSpec,
        num_groups: int,
        tasks: RowTasks,
        num_tasks: int,
        *,
        may_restart: bool = False,
    ) -> None:
        self._factories, self._spec = list(factories), spec
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self.obs_spec, self.mask_size = spec.obs_spec, spec.mask_size
        self.num_rows, self.num_groups = len(factories), num_groups
        self.num_tasks, self._tasks = num_tasks, tasks
        self._slices = group_slices(self.num_rows, num_groups)
        self._group_size = self.num_rows // num_groups
        self._order = CallOrder(num_groups)
        self._log = EpisodeLog(self.num_rows, num_groups, self.action_space)
        self._may_restart, self._keeps_log = may_restart, True
        self._restore_class: RestoreClass | None = None

    @property
    def tasks(self) -> np.ndarray:
        """``[num_rows]`` what each environment plays."""
        return self._tasks.now

    @property
    def next_tasks(self) -> np.ndarray:
        """``[num_rows]`` the task of each environment's next episode; write to it between steps."""
        return self._tasks.next

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """Try the classes on throwaway environments in this process."""
        support = check_restore(self._factories, self._spec, wanted, in_use=self._envs_here())
        self._restore_class = support.restore_class
        if not self._needs_log():
            self._stop_logging()
        return support

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment; `boundary` before the first reset."""
        state = boundary_state()
        if self._order.is_between_steps("state_dict()"):
            if self._restore_class == "snapshot":
                state = snapshot_state(lambda: {"rows": self._row_states()})
            elif self._restore_class == "repeat":
                state = repeat_state(self._log)
        is_tasked = self.num_tasks > 1 and state["class"] != "boundary"
        return {**state, **self._tasks.state()} if is_tasked else state

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore every environment; after a `boundary`, `reset` comes next."""
        self._order.forget()
        self._finish_steps()
        saved_class = class_of_state(state)
        if saved_class == "boundary":
            return None
        if self.num_tasks > 1:
            self._tasks.load(state, self.num_tasks)
        if saved_class == "repeat":
            self._log.load(state)
        else:
            self._log.begin_at(snapshot_rows(state, self.num_rows))
        obs = self._bring_all()
        self._begin_to_log()
        self._order.mark_placed()
        return obs if saved_class == "repeat" else None

    def _begin_to_log(self) -> None:
        """All rows are where the log has them; steps are logged from here on if they may be needed."""
        self._keeps_log = True
        if not self._needs_log():
            self._stop_logging()

    def _needs_log(self) -> bool:
        return self._may_restart or self._restore_class in (None, "repeat")

    def _stop_logging(self) -> None:
        self._keeps_log = False
        self._log.forget()

    def _place(self, row: int) -> RowPlace:
        """Where a row is, according to the log."""
        return self._log.place_of(row, int(self._tasks.now[row]))

    def _envs_here(self) -> Collection[GymEnv]:
        """Environments that this process steps itself."""
        return ()

    def _finish_steps(self) -> None:
        """Wait for running steps, whose results are not needed any more."""

    def _row_states(self) -> list[dict[str, Any]]:
        """What `restore.row_places.row_states` returns for all rows."""
        raise NotImplementedError

    def _bring_all(self) -> ObsArrays:
        """Bring every row to its place; what rows observe there, if that was seen again."""
        raise NotImplementedError
