"""`QueuedEvaluation`: policies are evaluated by workers that take them from a queue in a database."""

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metta import errors
from metta.agent.policy import Policy
from metta.errors import (
    ConfigError,
    EnvError,
    MettaError,
    MissingExtraError,
    UnsafeFileError,
)
from metta.private_folders import temporary_folder
from metta.rl.evaluate.courier_process import CourierProcess
from metta.rl.evaluate.described import (
    asked_by,
    describe_evaluator,
    described_evaluation,
    key_of,
    modules_of,
)
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
from metta.rl.evaluate.outcome import Outcome, failed
from metta.rl.evaluate.process import EvaluationRequest, write_weights
from metta.sim.suite import SuiteResults
from metta.store.policies.file import freeze_policy, read_policy_manifest
from metta.untrusted.paths import safe_join

__all__ = ["QueuePlace", "QueuedEvaluation"]

_POLL_SECONDS = 0.2
_START_SECONDS = 300.0
"""In which a courier must have said whether it can work; it may have to start Ray."""
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 8.0
"""Before a courier that ended is started again."""


@dataclass(frozen=True)
class QueuePlace:
    """Where the queue of a run is, and who plays."""

    run_id: str
    database: str
    """Its address; may be ``env:NAME``."""
    advice: str
    """What starts a worker of this queue."""
    ray: Mapping[str, Any] | None = None
    """``address`` and ``num_workers`` of the workers that the courier runs on Ray; None: it runs none."""

    @property
    def where(self) -> str:
        """The setting that asks for it."""
        return "queue" if self.ray is None else "ray"


@dataclass(frozen=True)
class _Job:
    moment: EvaluationRequest
    message: dict[str, Any]


class QueuedEvaluation:
    """Lets workers elsewhere play; a separate program, the courier, posts jobs and brings results.

        evaluations = QueuedEvaluation(evaluator, QueuePlace(run_id, "runs/stats.db", advice="..."))
        evaluations.start()                            # refused before any work if it cannot work
        evaluations.submit(EvaluationRequest(epoch=10, agent_step=5_120), policy, weights)
        ...
        for outcome in evaluations.collect():          # in the order of submission
            ...
        evaluations.close()

    Neither a database that is away nor a courier that ends disturbs the trainer: the courier tries again,
    or is started again, for as long as it takes. A job that is posted twice is done once, since its key
    says what is played; a run that is resumed finds the result that is there.
    """

    def __init__(self, evaluator: Any, place: QueuePlace) -> None:
        self._played = describe_evaluator(evaluator, asked_by(place.where))
        self.evaluator: PolicyEvaluator = evaluator
        self.place = place
        self._jobs: dict[int, _Job] = {}
        """Those without an outcome that was collected, in the order of submission."""
        self._answers: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._courier: CourierProcess | None = None
        self._pause, self._next_start = _FIRST_PAUSE, 0.0
        self._trouble = ""
        self._scratch = contextlib.ExitStack()
        self._folder: Path | None = None

    @property
    def pid(self) -> int | None:
        """The courier, if it runs."""
        return None if self._courier is None else self._courier.pid

    @property
    def unfinished(self) -> set[int]:
        """Epochs of which scores or replays are still to come, or were not collected."""
        return {job.moment.epoch for job in self._jobs.values()}

    @property
    def epochs(self) -> set[int]:
        """Epochs whose policies wait for their scores."""
        return {job.moment.epoch for job in self._jobs.values() if job.moment.is_scored}

    @property
    def trouble(self) -> str:
        """Why nothing may come at the moment, and what to do about it; empty if all is well."""
        return self._trouble

    def start(self) -> None:
        """Start the courier; raises what it finds wrong. A database that is merely away is not wrong."""
        if self._courier is not None:
            return
        _require_extras(self.place.where)
        courier, deadline = self._start_courier(), time.monotonic() + _START_SECONDS
        while not courier.has_ended and time.monotonic() < deadline:
            for message in courier.receive(_POLL_SECONDS):
                if "error" in message:
                    self.close()
                    raise _error_of(message)
                if "ready" in message:
                    return
        self.close()
        raise ConfigError(
            f"evaluation.where={self.place.where!r}: the program that posts jobs ended, or did not answer; "
            "evaluation.where=process evaluates on this machine"
        )

    def submit(
        self, moment: EvaluationRequest, policy: Policy, weights: Path | None = None
    ) -> None:
        """Let the policy be evaluated as it is now; never waits.

        With `weights`, a policy file that stays until then, its weights are taken from there.
        """
        if weights is None:  # it could not be kept where a resumed run looks for it
            weights = write_weights(self._new_folder(), freeze_policy(policy))
        policy_hash = read_policy_manifest(weights)["policy_hash"]
        for part in _parts(moment):
            payload = described_evaluation(self._played, part, str(weights.absolute()), policy_hash)
            key, self._number = key_of(payload, self.place.run_id), self._number + 1
            message = {"post": {"number": self._number, "key": key, "payload": payload}}
            self._jobs[self._number] = _Job(part, message)
            if self._courier is not None:
                self._courier.send(message)
        self._advance()

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._scratch.enter_context(temporary_folder("evaluation"))
        return Path(tempfile.mkdtemp(dir=self._folder))

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something ends, at most so long; without `seconds` until everything has."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._jobs.keys() - self._answers.keys():
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            has_come = self._advance(max(0.0, min(left, _POLL_SECONDS)))
            if deadline is not None and (has_come or left <= 0):
                return

    def collect(self, *, wait: bool = False) -> list[Outcome]:
        """What ended since the last call, in order; with `wait` everything that was submitted."""
        self._advance()
        if wait:
            self.wait()
        outcomes: list[Outcome] = []
        for number in list(self._jobs):
            if number not in self._answers:
                break  # later ones wait for this one
            job = self._jobs.pop(number)
            outcomes.append(self._outcome(job.moment, self._answers.pop(number)))
        return outcomes

    def _start_courier(self) -> CourierProcess:
        self._courier = courier = CourierProcess()
        place, ray = self.place, self.place.ray
        if ray is not None:  # the trainer has imported them already
            ray = {**ray, "modules": modules_of(self._played)}
        group = f"evaluation/{place.run_id}"
        courier.send({"open": {"database": place.database, "group": group, "ray": ray}})
        for number, job in self._jobs.items():
            if number not in self._answers:
                courier.send(job.message)
        return courier

    def _has_started(self) -> bool:
        try:
            self._start_courier()
        except OSError as error:
            self._trouble = ""  # older than this
            self._put_off(f"the program that posts jobs cannot be started: {error}")
            return False
        return True

    def _put_off(self, why: str) -> None:
        """Start the courier again, but later: after a longer pause each time."""
        self._trouble = self._trouble or why
        self._courier, self._next_start = None, time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)

    def _advance(self, seconds: float = 0.0) -> bool:
        """Take in what came, waiting so long for it; returns whether an evaluation ended."""
        if self._courier is None:
            pause = self._next_start - time.monotonic()
            if not self._jobs or pause > 0 or not self._has_started():
                time.sleep(max(0.0, min(pause, seconds)))
                return False
        assert self._courier is not None
        before = len(self._answers)
        for message in self._courier.receive(seconds):
            self._take(message)
        if self._courier.has_ended:
            self._courier.end()
            self._put_off("the program that posts jobs ended; it is started again")
        return len(self._answers) > before

    def _take(self, message: dict[str, Any]) -> None:
        if "answer" in message:
            self._pause, self._trouble = _FIRST_PAUSE, ""
            if message["answer"] in self._jobs:
                self._answers[message["answer"]] = message
        elif "error" in message:
            self._trouble = f"{message['error']}"
        elif "state" in message:
            self._trouble = self._trouble_of(message["state"])

    def _trouble_of(self, state: Mapping[str, Any]) -> str:
        if state["away"]:
            return f"{state['away']}; jobs are posted when it is back"
        if state["is_ignored"]:
            return f"no worker has taken them; {self.place.advice}"
        return ""

    def _outcome(self, moment: EvaluationRequest, answer: dict[str, Any]) -> Outcome:
        """What came of a job; what a database holds may be anything."""
        if answer["error"] is not None:
            return failed(moment, EnvError(answer["error"]))
        result = answer["result"]
        try:
            if moment.replay_dir is not None:
                recorded = _recorded(result["replays"], moment.replay_dir)
                return Outcome(moment, None, recorded=recorded)
            results = SuiteResults.from_dict(result["results"])
            if unknown := set(results.episodes) - set(self._played["suite"]["simulations"]):
                raise ValueError(f"it has scores of {sorted(unknown)[0]!r}")
            return Outcome(moment, results)
        except (KeyError, TypeError, ValueError, AttributeError, UnsafeFileError) as error:
            why = f"the database has a result of it that metta did not write: {error}"
            return failed(moment, EnvError(why))

    def close(self) -> None:
        """End the courier, and forget what is not done; may be called again, and `submit` after it."""
        self._jobs.clear()
        self._answers.clear()
        courier, self._courier = self._courier, None
        try:
            if courier is not None:
                courier.end()
        finally:
            self._folder, self._trouble = None, ""
            self._scratch.close()


def _parts(moment: EvaluationRequest) -> list[EvaluationRequest]:
    """Scores and replays are separate jobs: scores do not wait for pictures."""
    parts = [replace(moment, replay_dir=None)] if moment.is_scored else []
    return parts if moment.replay_dir is None else [*parts, replace(moment, is_scored=False)]


def _require_extras(where: str) -> None:
    extras = {"sqlalchemy": "database"} | ({"ray": "ray"} if where == "ray" else {})
    for package, extra in extras.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra, f"evaluation.where={where}")


def _recorded(found: Mapping[str, Any], folder: str) -> Recorded:
    """Replays in the folder where they were asked for, and nowhere else."""
    names = {str(name): Path(str(path)).name for name, path in found["files"].items()}
    files = {name: str(safe_join(folder, file)) for name, file in names.items()}
    return Recorded(files, {str(name): str(why) for name, why in found["failures"].items()})


def _error_of(message: Mapping[str, Any]) -> MettaError:
    """The courier's error, by its type."""
    if message["made_of"] is not None:
        return MissingExtraError(*message["made_of"])
    kind = getattr(errors, str(message["kind"]), None)
    if isinstance(kind, type) and issubclass(kind, MettaError):
        return kind(message["error"])
    return ConfigError(message["error"])
