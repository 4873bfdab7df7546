"""`PromisedEvaluations`: pending background evaluations that survive the end of the process."""

import contextlib
import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from metta.agent.policy import Policy
from metta.errors import MettaError
from metta.rl.evaluate.process import EvaluationRequest
from metta.store.checkpoints.owed_evaluations import OwedEvaluation, OwedEvaluations
from metta.store.policies.file import freeze_policy
from metta.untrusted.paths import path_of

__all__ = ["PromisedEvaluations"]


class PromisedEvaluations:
    """Keeps the policy of each evaluation in a file, from the promise until the records are on the disk.

    An epoch that no checkpoint has is trained again by a resumed run, which then promises its evaluation
    again; all others have their file. A crash between the records of an evaluation and the removal of
    its file has it played twice; it is recorded once, see `is_recorded`. Without a `store` nothing is kept.
    """

    def __init__(self) -> None:
        self._store: OwedEvaluations | None = None
        self._owed: dict[int, OwedEvaluation] = {}
        self._recorded: set[tuple[str, int, str]] = set()

    def take_up(
        self,
        store: OwedEvaluations | None,
        epoch: int,
        stats_client: Any,
        *,
        replay_dir: Path | None,
    ) -> list[tuple[EvaluationRequest, Path]]:
        """Evaluations that a run resumed at `epoch` still has to do, with the policies' files."""
        self._store, self._owed, self._recorded = store, {}, set()
        if store is None:
            return []
        found = store.list()
        store.remove(one.epoch for one in found if one.epoch > epoch)  # will be promised again
        self._owed = {one.epoch: one for one in found if one.epoch <= epoch}
        self.look_up(self._owed, stats_client)
        owed = self._owed.values()
        return [(_moment_of(one, store, replay_dir), store.file_of(one.epoch)) for one in owed]

    def add(
        self, store: OwedEvaluations | None, moment: EvaluationRequest, policy: Policy
    ) -> Path | None:
        """Promise an evaluation of the policy as it is now; returns its file, if any."""
        self._store = store
        if store is None:
            return None
        wanted = OwedEvaluation(
            moment.epoch,
            moment.agent_step,
            None if moment.policy_uri is None else path_of(moment.policy_uri).name,
            moment.is_scored,
            moment.replay_dir is not None,
        )
        before = self._owed.get(moment.epoch)
        if (
            before is not None
        ):  # the scores of this epoch are still to come, and now replays are wanted
            wanted = dataclasses.replace(
                wanted,
                is_scored=wanted.is_scored or before.is_scored,
                is_recorded=wanted.is_recorded or before.is_recorded,
            )
        path = store.add(wanted, freeze_policy(policy))
        self._owed[moment.epoch] = wanted
        return path

    def look_up(self, epochs: Collection[int], stats_client: Any) -> None:
        """See in the log what processes before this one recorded of these epochs."""
        if hasattr(stats_client, "recorded"):
            with contextlib.suppress(MettaError, OSError, KeyError, TypeError, ValueError):
                # of a log with a bad line, of which `MetricsHook` warns, records may come twice
                self._recorded |= stats_client.recorded(epochs)

    def is_recorded(self, kind: str, epoch: int, simulation: str = "") -> bool:
        """Whether a process before this one recorded that already."""
        return (kind, epoch, simulation) in self._recorded

    def keep_only(self, unfinished: Collection[int], stats_client: Any) -> None:
        """Evaluations of other epochs are recorded: remove their files when the records are on the disk."""
        done = self._owed.keys() - set(unfinished)
        if not done or self._store is None:
            return
        sync = getattr(stats_client, "sync", None)
        if sync is not None and not sync():
            return
        with contextlib.suppress(OSError):  # a file that stays is played again on resume
            self._store.remove(done)
        for epoch in done:
            del self._owed[epoch]


def _moment_of(
    owed: OwedEvaluation, store: OwedEvaluations, replay_dir: Path | None
) -> EvaluationRequest:
    uri = owed.checkpoint and (store.checkpoint_dir / owed.checkpoint).as_uri()
    folder = str(replay_dir) if owed.is_recorded and replay_dir is not None else None
    return EvaluationRequest(owed.epoch, owed.agent_step, uri, owed.is_scored, folder)
