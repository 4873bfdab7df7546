"""`BackgroundEvaluation`: policies are judged in a process of their own while training goes on."""

import atexit
import contextlib
import dataclasses
import shutil
import tempfile
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metta.agent.policy import Policy
from metta.envs.guardian import Guardian
from metta.envs.worker_process import worker_context
from metta.errors import EnvError, MettaError, MettaWarning
from metta.private_folders import temporary_folder
from metta.rl.evaluator import Recorded
from metta.rl.hooks.judge_process import JudgeProcess, Moment, described_job, write_weights
from metta.sim.suite import SuiteResults
from metta.store.policy_file import FrozenPolicy, freeze_policy

__all__ = ["MOST_WAITING", "BackgroundEvaluation", "Moment", "Outcome"]

MOST_WAITING = 8
"""Evaluations that wait in line; when more are due, the one that waits longest is left out."""


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to; where replays were wanted too, they are an outcome of their own."""

    moment: Moment
    results: SuiteResults | None
    error: MettaError | None = None
    """Why there are no results though scores were wanted."""
    recorded: Recorded = field(default_factory=Recorded)


@dataclass(frozen=True)
class _Waiting:
    moment: Moment
    job: bytes
    weights: FrozenPolicy


@dataclass(frozen=True)
class _Playing:
    moment: Moment
    folder: Path
    deadline: float
    """On the monotonic clock."""


class BackgroundEvaluation:
    """Plays evaluations one after the other in a process that ends when this is closed.

        evaluations = BackgroundEvaluation(evaluator, timeout_seconds=600)
        evaluations.submit(Moment(epoch=10, agent_step=5_120), policy)
        ...
        for outcome in evaluations.collect():          # those that ended since the last call
            ...
        evaluations.close()

    `submit` copies the policy; what happens to it afterwards does not matter. The process gets it in a
    file, plays on the processor, and cannot outlive this one. Where it dies, or takes longer than
    `timeout_seconds`, the outcome has an error, and a new process plays the next evaluation.
    """

    def __init__(self, evaluator: Any, timeout_seconds: float) -> None:
        self.evaluator, self.timeout_seconds = evaluator, timeout_seconds
        self._waiting: deque[_Waiting] = deque()
        self._playing: _Playing | None = None
        self._finished: list[Outcome] = []
        self._judge: JudgeProcess | None = None
        self._guardian: Guardian | None = None
        self._scratch = contextlib.ExitStack()
        self._folder: Path | None = None
        """Of all jobs; each has a folder of its own in it."""

    @property
    def pid(self) -> int | None:
        """The process that plays, where there is one."""
        return None if self._judge is None else self._judge.pid

    @property
    def epochs(self) -> set[int]:
        """Whose policies wait for their scores."""
        moments = [waiting.moment for waiting in self._waiting]
        moments += [outcome.moment for outcome in self._finished]
        moments += [] if self._playing is None else [self._playing.moment]
        return {moment.epoch for moment in moments if moment.is_scored}

    def submit(self, moment: Moment, policy: Policy) -> None:
        """Judge the policy as it is now, as soon as those before it are done."""
        job = described_job(self.evaluator, policy, moment)
        self._waiting.append(_Waiting(moment, job, freeze_policy(policy)))
        if len(self._waiting) > MOST_WAITING:
            late = self._waiting.popleft().moment
            warnings.warn(
                f"more than {MOST_WAITING} evaluations wait, so that of epoch {late.epoch} is left out; "
                "raise evaluate_interval, or lower eval_episodes",
                MettaWarning,
                stacklevel=2,
            )
        self._advance(wait=False)

    def collect(self, *, wait: bool = False) -> list[Outcome]:
        """What ended since the last call, in order; with `wait` everything that was submitted."""
        self._advance(wait=wait)
        outcomes, self._finished = self._finished, []
        return outcomes

    def _advance(self, *, wait: bool) -> None:
        """Begin and end evaluations, as far as that is possible now."""
        while self._playing is not None or self._waiting:
            if self._playing is None:
                self._begin(self._waiting.popleft())
            elif not self._look(self._playing, wait=wait):
                return

    def _begin(self, waiting: _Waiting) -> None:
        if self._folder is None:
            atexit.register(self.close)
            self._folder = self._scratch.enter_context(temporary_folder("evaluation"))
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        deadline = time.monotonic() + self.timeout_seconds
        self._playing = _Playing(waiting.moment, folder, deadline)
        try:
            write_weights(folder, waiting.weights)
            self._ready_judge().give(folder, waiting.job)
        except (OSError, MettaError) as error:
            self._fail(f"it could not be started: {error}")

    def _ready_judge(self) -> JudgeProcess:
        if self._judge is not None and self._judge.has_ended:
            self._end_judge()
        if self._guardian is None:
            self._guardian = Guardian(worker_context())
        if self._judge is None:
            self._judge = JudgeProcess(worker_context())
            self._guardian.watch(0, self._judge.pid)
        return self._judge

    def _look(self, playing: _Playing, *, wait: bool) -> bool:
        """Whether there is news of the evaluation under way."""
        assert self._judge is not None
        left = playing.deadline - time.monotonic()
        answer = self._judge.answer(left if wait else 0.0)
        if answer is not None:
            self._take(playing, answer)
        elif self._judge.has_ended:
            code = self._end_judge()
            self._fail(f"its process ended with exit code {code} before it had a result")
        elif time.monotonic() >= playing.deadline:
            self._end_judge()
            limit = f"eval_timeout_seconds={self.timeout_seconds:g}"
            self._fail(f"it took longer than {limit}, and was ended")
        else:
            return False
        return True

    def _take(self, playing: _Playing, answer: dict[str, Any]) -> None:
        moment = playing.moment
        if "error" in answer:
            self._fail(str(answer["error"]))
        elif "replays" in answer:
            self._finish(Outcome(moment, None, recorded=Recorded(**answer["replays"])))
        else:
            outcome = Outcome(moment, SuiteResults.from_dict(answer["results"]))
            if not answer["more"]:
                self._finish(outcome)
                return
            self._finished.append(outcome)
            rest = dataclasses.replace(moment, is_scored=False)
            deadline = time.monotonic() + self.timeout_seconds
            self._playing = _Playing(rest, playing.folder, deadline)

    def _fail(self, why: str) -> None:
        """Scores that are missing are an error, replays only a pity."""
        assert self._playing is not None
        moment = self._playing.moment
        if moment.is_scored:
            self._finish(Outcome(moment, None, EnvError(why)))
        else:
            self._finish(Outcome(moment, None, recorded=Recorded(failures={"all": why})))

    def _finish(self, outcome: Outcome) -> None:
        assert self._playing is not None
        shutil.rmtree(self._playing.folder, ignore_errors=True)
        self._playing = None
        self._finished.append(outcome)

    def _end_judge(self) -> int | None:
        judge, self._judge = self._judge, None
        return None if judge is None else judge.end()

    def close(self) -> None:
        """End the process, and forget what is not done; may be called again, and `submit` after it."""
        self._waiting.clear()
        self._finished.clear()
        self._playing = None
        guardian, self._guardian = self._guardian, None
        try:
            self._end_judge()
        finally:
            if guardian is not None:
                guardian.dismiss()
            self._folder = None
            self._scratch.close()
            atexit.unregister(self.close)
