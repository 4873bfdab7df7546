"""`BackgroundEvaluation`: policies are evaluated in a separate process while training continues."""

import atexit
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.agent.policy import Policy
from metta.envs.workers.guardian import Guardian
from metta.envs.workers.worker_process import worker_context
from metta.errors import EnvError, MettaError
from metta.private_folders import temporary_folder
from metta.rl.evaluate.evaluator import Recorded
from metta.rl.evaluate.outcome import Outcome, failed
from metta.rl.evaluate.process import (
    EvaluationProcess,
    EvaluationRequest,
    described_job,
    write_weights,
)
from metta.sim.suite import SuiteResults
from metta.store.policies.file import freeze_policy

__all__ = ["BackgroundEvaluation", "EvaluationRequest", "Outcome"]

_MAX_ATTEMPTS = 2
"""How often an evaluation is played whose process ends without a result."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _Job:
    moment: EvaluationRequest
    job: bytes
    weights: Path
    folder: Path | None = None
    """Of weights that nobody else keeps."""
    attempt: int = 1


@dataclass(frozen=True)
class _Playing:
    job: _Job
    deadline: float
    """On the monotonic clock."""

    @property
    def moment(self) -> EvaluationRequest:
        return self.job.moment


class BackgroundEvaluation:
    """Plays evaluations one after the other in a process that ends when this is closed.

        evaluations = BackgroundEvaluation(evaluator, timeout_seconds=600)
        evaluations.submit(EvaluationRequest(epoch=10, agent_step=5_120), policy)
        ...
        for outcome in evaluations.collect():          # those that ended since the last call
            ...
        evaluations.close()

    `submit` copies the policy into a file; what happens to it afterwards does not matter. Any number of
    files may wait. The process plays on the CPU, and cannot outlive this one. If it dies, the evaluation is
    played once more; if it dies again, or takes longer than `timeout_seconds`, the outcome has an error,
    and a new process plays the next evaluation.
    """

    def __init__(self, evaluator: Any, timeout_seconds: float) -> None:
        self.evaluator, self.timeout_seconds = evaluator, timeout_seconds
        self._waiting: deque[_Job] = deque()
        self._playing: _Playing | None = None
        self._finished: list[Outcome] = []
        self._process: EvaluationProcess | None = None
        self._guardian: Guardian | None = None
        self._scratch = contextlib.ExitStack()
        self._folder: Path | None = None
        """Folder of all jobs; each has its own folder in it."""

    @property
    def pid(self) -> int | None:
        """The process that plays, if any."""
        return None if self._process is None else self._process.pid

    @property
    def unfinished(self) -> set[int]:
        """Epochs of which scores or replays are still to come, or were not collected."""
        return {moment.epoch for moment in self._moments()}

    @property
    def epochs(self) -> set[int]:
        """Epochs whose policies wait for their scores."""
        return {moment.epoch for moment in self._moments() if moment.is_scored}

    @property
    def trouble(self) -> str:
        """Nothing: a process that ends is started again."""
        return ""

    def _moments(self) -> list[EvaluationRequest]:
        moments = [job.moment for job in self._waiting]
        moments += [outcome.moment for outcome in self._finished]
        return moments if self._playing is None else [*moments, self._playing.moment]

    def submit(
        self, moment: EvaluationRequest, policy: Policy, weights: Path | None = None
    ) -> None:
        """Evaluate the policy as it is now, as soon as those before it are done.

        With `weights`, a policy file that stays until then, its weights are taken from there.
        """
        job = described_job(self.evaluator, policy, moment)
        folder = None if weights is not None else self._new_folder()
        if folder is not None:
            weights = write_weights(folder, freeze_policy(policy))
        assert weights is not None
        self._waiting.append(_Job(moment, job, weights, folder))
        self._advance()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something ends, at most so long; without `seconds` until everything has."""
        if seconds is not None:
            self._advance(seconds)
            return
        while self._playing is not None or self._waiting:
            self._advance(_POLL_SECONDS)

    def collect(self, *, wait: bool = False) -> list[Outcome]:
        """What ended since the last call, in order; with `wait` everything that was submitted."""
        self._advance()
        if wait:
            self.wait()
        outcomes, self._finished = self._finished, []
        return outcomes

    def _advance(self, seconds: float = 0.0) -> None:
        """Begin and end evaluations, as far as that is possible now; wait so long for the first answer."""
        while self._playing is not None or self._waiting:
            if self._playing is None:
                self._begin(self._waiting.popleft())
            elif self._look(self._playing, seconds):
                seconds = 0.0
            else:
                return

    def _begin(self, job: _Job) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        self._playing = _Playing(job, deadline)
        try:
            # the files of an attempt that may be repeated stay
            self._ready_process().give(job.weights, job.job)
        except (OSError, MettaError) as error:
            if self._process is not None and self._process.has_ended:
                self._take_end(job, self._end_process())
            else:
                self._fail(f"it could not be started: {error}")
        except BaseException:
            self._playing = None  # nothing plays
            raise

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._scratch.enter_context(temporary_folder("evaluation"))
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _ready_process(self) -> EvaluationProcess:
        if self._process is not None and self._process.has_ended:
            self._end_process()
        if self._guardian is None:
            atexit.register(self.close)
            self._guardian = Guardian(worker_context())
        if self._process is None:
            self._process = EvaluationProcess(worker_context())
            self._guardian.watch(0, self._process.pid)
        return self._process

    def _look(self, playing: _Playing, seconds: float) -> bool:
        """Whether the running evaluation has answered, waiting so long for it."""
        assert self._process is not None
        left = max(playing.deadline - time.monotonic(), 0.0)
        answer = self._process.answer(min(left, seconds))
        if answer is not None:
            self._take(playing, answer)
        elif self._process.has_ended:
            self._take_end(playing.job, self._end_process())
        elif time.monotonic() >= playing.deadline:
            self._end_process()
            limit = f"eval_timeout_seconds={self.timeout_seconds:g}"
            self._fail(f"it took longer than {limit}, and was ended")
        else:
            return False
        return True

    def _take_end(self, job: _Job, exit_code: int | None) -> None:
        """The process ended without a result: another one plays the same, unless that happened before."""
        if job.attempt == _MAX_ATTEMPTS:
            self._fail(f"its process ended with exit code {exit_code} before it had a result")
            return
        self._playing = None
        self._waiting.appendleft(dataclasses.replace(job, attempt=job.attempt + 1))

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
            job = dataclasses.replace(playing.job, moment=rest, attempt=_MAX_ATTEMPTS)
            deadline = time.monotonic() + self.timeout_seconds
            self._playing = _Playing(job, deadline)

    def _fail(self, why: str) -> None:
        assert self._playing is not None
        self._finish(failed(self._playing.moment, EnvError(why)))

    def _finish(self, outcome: Outcome) -> None:
        self._remove_folder()
        self._playing = None
        self._finished.append(outcome)

    def _remove_folder(self) -> None:
        if self._playing is not None and self._playing.job.folder is not None:
            shutil.rmtree(self._playing.job.folder, ignore_errors=True)

    def _end_process(self) -> int | None:
        process, self._process = self._process, None
        return None if process is None else process.end()

    def close(self) -> None:
        """End the process, and forget what is not done; may be called again, and `submit` after it."""
        self._waiting.clear()
        self._finished.clear()
        guardian, self._guardian = self._guardian, None
        try:
            self._end_process()
        finally:
            if guardian is not None:
                guardian.dismiss()
            self._playing = self._folder = None
            self._scratch.close()
            atexit.unregister(self.close)
