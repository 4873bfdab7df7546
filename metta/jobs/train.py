"""Jobs of kind ``train``: a run in a process of its own, from its settings to its score."""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from metta.curriculum.tasks import tasks_of
from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.worker import die_with_trainer
from metta.envs.workers.worker_process import worker_context
from metta.errors import ConfigError, RunLockedError
from metta.jobs.failures import JobFailedError, is_final, shown_error
from metta.jobs.job import Job
from metta.jobs.run_result import read_result
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings
from metta.processes import PipedProcess, WorkerContext, start_process
from metta.rl.components.trainer import Trainer
from metta.train.layers import config_from_mapping
from metta.train.sim_config import find_suite
from metta.train.train_config import TrainingConfig
from metta.untrusted.paths import check_name, safe_join

__all__ = ["cpu_seconds", "envs_of", "train", "training_folder"]

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 60.0
"""How long a run that is asked to stop may take to end its epoch and save."""
_END_SECONDS = 10.0
"""How long the process of a run may take to end after its answer."""
_LOCK_SECONDS = 20.0
"""How long to wait for the trainer of a worker that was killed: it ends a moment after it."""
_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


class _Request(NamedTuple):
    """What the process of a run gets."""

    environ: dict[str, str]
    directory: str
    folder: Path
    config: TrainingConfig
    provenance: Mapping[str, Any] | None


def train(job: Job, settings: WorkerSettings, watch: JobWatch) -> dict[str, Any]:
    """Train, or continue, the run that the payload names; returns what `read_result` finds in it.

    ``{"run": "first/t003-s1", "settings": {path: value}, "provenance": {...}}``: the settings that were
    given, others follow as in `metta train`.
    """
    folder = training_folder(settings.runs, job.payload.get("run"))
    config = _config_of(job.payload.get("settings"))
    for env_id in envs_of(config):
        settings.require_env(env_id)
    _require_own_services(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    request = _Request(
        dict(os.environ), str(Path.cwd()), folder, config, job.payload.get("provenance")
    )
    with _Child(request) as child:
        while (answer := child.answer()) is None:
            watch.check()
    if "error" in answer:
        raise JobFailedError(answer["error"], is_final=answer["is_final"])
    return {**read_result(folder), "cpu_seconds": answer["cpu_seconds"]}


def training_folder(runs: str, run: Any) -> Path:
    """The folder of a run that a job names: names of folders, below the folder of runs."""
    if not isinstance(run, str):
        raise ConfigError(f"the job names no run, but {run!r}")
    names = [check_name(name, "the run of the job:") for name in run.split("/")]
    return safe_join(Path(runs).absolute(), *names)


def _config_of(settings: Any) -> TrainingConfig:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"the job has no settings, but {settings!r}")
    return config_from_mapping(settings)


def envs_of(config: TrainingConfig) -> set[Any]:
    """Ids of all environments that a run makes: of its tasks, and of the suite that evaluates it."""
    envs = {task.env for task in tasks_of(config.trainer.curriculum)}
    suite = config.trainer.evaluation.suite
    if suite is not None:
        envs |= {one.env for one in find_suite(suite).simulations.values() if one.env is not None}
    return envs


def _require_own_services(config: TrainingConfig) -> None:
    """Databases and clusters are the worker's own: what a job named would get its files and secrets."""
    collect, evaluation = config.trainer.collect, config.trainer.evaluation
    named = {
        "collect.address": collect.address,
        "evaluation.database": evaluation.database,
        "evaluation.ray_address": evaluation.ray_address,
    }
    for name, value in named.items():
        if value is not None:
            raise ConfigError(
                f"the job sets {name}={value!r}; workers use no database or cluster that a job names: "
                f"leave {name} out (METTA_STATS_URL of the worker names a database)"
            )


class _Child:
    """The process of a run; at the end of the block it has ended, and has saved what it learned."""

    def __init__(self, request: _Request) -> None:
        self._started = start_process(_context(), _serve, (request,), f"run {request.folder.name}")
        self._end = ProcessEnd(self._started.process.pid or 0, self._started.process.sentinel)

    def answer(self) -> dict[str, Any] | None:
        """What it answered; None: nothing yet. `JobFailedError` if it ended without an answer."""
        answers = self._started.answers
        if answers.poll(_LOOK_SECONDS):
            with contextlib.suppress(EOFError):
                found: dict[str, Any] = json.loads(answers.recv_bytes())
                return found
            self._started.process.join()
            code = self._started.process.exitcode
            raise JobFailedError(f"the process of the run ended with exit code {code}")
        return None

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if not self._end.within(_END_SECONDS if error is None else 0.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._started.process.pid or 0, signal.SIGTERM)
            if not self._end.within(_STOP_SECONDS):
                self._end.kill()
        _close(self._started)
        self._end.close()


def _close(started: PipedProcess) -> None:
    started.process.join()
    started.process.close()
    started.commands.close()
    started.answers.close()


def _context() -> WorkerContext:
    """A fork server that has everything imported, so that a run starts in a moment."""
    context = worker_context()
    if isinstance(context, ForkServerContext):
        context.set_forkserver_preload([__name__, "metta.rl.components.trainer"])
    return context


def _serve(request: _Request, commands: Connection, answers: Connection) -> None:
    """The process of a run. It ends with its worker, whose end of the pipe of commands closes then."""
    threading.Thread(target=die_with_trainer, args=(commands.fileno(),), daemon=True).start()
    # Ctrl-C reaches every process; the worker decides when to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)  # with the processes of its environments
    os.environ.clear()
    os.environ.update(request.environ)
    os.chdir(request.directory)
    log = request.folder.with_name(f"{request.folder.name}.log")
    with log.open("a", buffering=1) as output, contextlib.redirect_stdout(output):
        sys.stderr = output
        answer = _answer(request)
    answers.send_bytes(json.dumps(answer).encode())


def _answer(request: _Request) -> dict[str, Any]:
    try:
        stop_signal = _train(request)
    except Exception as error:  # noqa: BLE001  # the worker reports it
        traceback.print_exc()
        return {"error": shown_error(error), "is_final": is_final(error)}
    if stop_signal is not None:
        return {"error": f"the run was stopped by signal {stop_signal}", "is_final": False}
    return {"cpu_seconds": cpu_seconds()}


def cpu_seconds() -> float:
    """CPU time of this process, and of processes that it started and that ended."""
    times = [resource.getrusage(who) for who in _PROCESSES]
    seconds = sum(one.ru_utime + one.ru_stime for one in times)
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # the fork server has waited for all workers
            found = child.cpu_times()
            seconds += found.children_user + found.children_system
    return seconds


def _train(request: _Request) -> int | None:
    """Train until it is done; returns the signal that stopped it, if any."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        trainer = Trainer(request.config, run_dir=request.folder, provenance=request.provenance)
        try:
            trainer.setup()
            trainer.train()
        except RunLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
            continue
        finally:
            trainer.cleanup()
        is_done = trainer.state.agent_step >= trainer.config.total_timesteps
        return None if is_done else trainer.stop_signal
