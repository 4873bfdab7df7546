"""Evaluations that `metta eval` plays: a saved policy in a suite, here or through a queue."""

import dataclasses
import shlex
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metta.cli.tables import say
from metta.errors import ConfigError, EnvError
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.agent.policy import Policy
    from metta.agent.policy_record import PolicyRecord
    from metta.jobs.job import JobRecord, JobSpec
    from metta.jobs.ledger import JobLedger
    from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded

__all__ = ["Elsewhere", "Plan", "play_elsewhere", "play_here"]

_KIND, _GROUP = "evaluate", "eval"
_QUIET_LOOKS = 12
"""Looks without a worker, about five seconds, before that is worth a line."""


class Plan(NamedTuple):
    """One policy in one suite."""

    uri: str
    """As the user named it."""
    record: "PolicyRecord"
    policy: "Policy"
    policy_hash: str
    evaluator: "PolicyEvaluator"
    replays: Path | None
    """Where replays go, if they are wanted."""


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """Where evaluations are played that are not played here."""

    database: str
    on: str
    """``queue`` or ``ray``."""
    num_workers: int | None
    """Started by this command; None: others do the work, or one on Ray."""
    ray_address: str | None
    seconds: float | None
    """How long to wait; None: until everything is done."""
    modules: tuple[str, ...] = ()
    """Of environments that the user named in this command."""


def play_here(plan: Plan) -> "Recorded":
    """Play in this process; the results are the evaluator's."""
    import torch  # not for --help

    from metta.rl.learn.numerics import threads_for

    torch.set_num_threads(threads_for(plan.policy))
    plan.evaluator.play(plan.policy)
    return _recorded_here(plan)


def _recorded_here(plan: Plan) -> "Recorded":
    from metta.rl.evaluate.evaluator import Recorded

    if plan.replays is None:
        return Recorded()
    record = plan.record
    about = {"epoch": record.epoch, "agent_step": record.agent_step}
    return plan.evaluator.record(plan.policy, plan.replays, **about, policy_uri=record.uri)


def play_elsewhere(plans: Sequence[Plan], place: Elsewhere) -> list["Recorded"]:
    """Have all of them played by workers; the results are those of the evaluators."""
    from metta.jobs.ledger import JobLedger
    from metta.jobs.posting import await_jobs, post_again

    specs = [_spec(plan, place) for plan in plans]  # refused before anything is posted
    with ExitStack() as held:
        ledger = held.enter_context(JobLedger(place.database))
        ledger.require_usable()
        workers = _workers(place, held)
        keys = [post_again(ledger, spec) for spec in specs]
        progress = _Progress(ledger, place, workers, plans)
        records = await_jobs(ledger, set(keys), look=progress.look, seconds=place.seconds)
    by_key = {record.key: record for record in records}
    _require_done(list(by_key.values()), place)
    return [
        _taken(plan, spec, by_key[key]) for plan, spec, key in zip(plans, specs, keys, strict=True)
    ]


def _spec(plan: Plan, place: Elsewhere) -> "JobSpec":
    import torch

    from metta.jobs.job import JobSpec
    from metta.rl.evaluate.described import (
        Asked,
        describe_evaluator,
        described_evaluation,
        key_of,
        require_built_in,
    )
    from metta.rl.evaluate.process import EvaluationRequest
    from metta.rl.learn.numerics import threads_for

    asked = Asked(f"--on {place.on}", "--on here plays it on this machine")
    require_built_in(plan.policy, asked)
    record = plan.record
    folder = None if plan.replays is None else str(_folder_in_run(plan, asked.instead))
    moment = EvaluationRequest(record.epoch, record.agent_step, record.uri, True, folder)
    torch.set_num_threads(threads_for(plan.policy))
    played = describe_evaluator(plan.evaluator, asked)
    policy = plan.uri if plan.uri.startswith("wandb://") else record.uri
    payload = described_evaluation(played, moment, policy, plan.policy_hash)
    return JobSpec(_KIND, key_of(payload, _GROUP), _GROUP, payload)


def _folder_in_run(plan: Plan, instead: str) -> Path:
    """A new folder in the run of a policy: workers write replays nowhere else."""
    from metta.store.run_directory import run_around
    from metta.untrusted.paths import path_of

    run = run_around(path_of(plan.record.uri))
    if run is None:
        raise ConfigError(
            f"--replays: {plan.uri!r} is in no run, and workers write replays into runs only; {instead}"
        )
    return run / "replays" / f"eval-{uuid.uuid4().hex}"


def _workers(place: Elsewhere, held: ExitStack) -> Any:
    """Workers that this command starts; None if others do the work."""
    from metta.jobs.worker_settings import WorkerSettings

    # jobs of others may need modules that this command does not know
    settings = WorkerSettings(
        place.database, kinds=(_KIND,), groups=(_GROUP,), modules=place.modules
    )
    if place.on == "ray":
        from metta.jobs.ray_workers import RayWorkers

        count, address = place.num_workers or 1, place.ray_address
        return held.enter_context(
            RayWorkers(settings, count, address=address, setting="--ray-address")
        )
    if place.num_workers is None:
        return None
    from metta.jobs.local_workers import LocalWorkers

    return held.enter_context(LocalWorkers(settings, place.num_workers))


class _Progress:
    """Says what is waited for, and replaces workers that died."""

    def __init__(
        self, ledger: "JobLedger", place: Elsewhere, workers: Any, plans: Sequence[Plan]
    ) -> None:
        from metta.rl.evaluate.described import envs_of_workers

        self._ledger, self._place, self._workers = ledger, place, workers
        self._envs = envs_of_workers(plan.evaluator for plan in plans)
        self._said, self._num_idle = -1, 0

    def look(self, records: list["JobRecord"]) -> None:
        """Say how jobs stand, if that changed."""
        if self._workers is not None:
            self._workers.check(self._ledger)
        open_states = [one.state for one in records if one.state in ("waiting", "held")]
        num_done = len(records) - len(open_states)
        is_idle = self._workers is None and bool(open_states) and "held" not in open_states
        self._num_idle = self._num_idle + 1 if is_idle and num_done == self._said else 0
        if num_done > self._said and open_states:
            _tell(f"waiting for {len(open_states)} of {len(records)} evaluations ...")
        if self._num_idle == _QUIET_LOOKS:
            named = self._place.database
            address = self._ledger.url if "://" in named else shlex.quote(named)
            command = f"metta worker --database {address}{self._envs}"
            _tell(
                f"no worker takes them; start one with: {command} (or add --workers 2 to this command)"
            )
        self._said = num_done


def _tell(text: str) -> None:
    say(text, file=sys.stderr, flush=True)


def _require_done(records: Sequence["JobRecord"], place: Elsewhere) -> None:
    failed = [record for record in records if record.state in ("failed", "cancelled")]
    if failed:
        first = failed[0]
        raise EnvError(
            f"{len(failed)} of {len(records)} evaluations failed; the first, of "
            f"{str(first.payload.get('policy'))!r}: {first.error or first.state}"
        )
    missing = [record for record in records if record.state != "done"]
    if missing:
        raise EnvError(
            f"{len(missing)} of {len(records)} evaluations are not done after --wait {place.seconds:g}; "
            "they stay in the queue: give the same command again, and what is done is not played again"
        )


def _taken(plan: Plan, spec: "JobSpec", record: "JobRecord") -> "Recorded":
    """Put results where an evaluation in this process has them; replays move to their folder."""
    from metta.rl.evaluate.evaluator import Recorded, warn_of_missing
    from metta.sim.suite import SuiteResults

    try:
        result = record.result or {}
        results = plan.evaluator.results = SuiteResults.from_dict(result["results"])
        warn_of_missing(results, plan.record.epoch)
        if plan.replays is None:
            return Recorded()
        written = Path(spec.payload["replay_dir"])
        files = dict(_moved(result["replays"]["files"], written, plan.replays.absolute()))
        return Recorded(files, dict(result["replays"]["failures"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnvError(f"{printable(plan.uri)}: metta did not write its result: {error}") from error
    except OSError as error:
        raise EnvError(
            f"{printable(plan.uri)}: its replays cannot be moved ({error}); do workers share its folder?"
        ) from error


def _moved(files: dict[str, str], source: Path, target: Path) -> Iterator[tuple[str, str]]:
    from metta.untrusted.paths import safe_join

    target.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        file = Path(path).name
        shutil.move(safe_join(source, file), target / file)
        yield name, str(target / file)
    shutil.rmtree(source, ignore_errors=True)
