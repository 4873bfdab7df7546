"""SIGKILL of a process that trains with workers, at a random instant.

Every worker must be gone within two seconds, also one that is stopped, or inside an environment that holds
the interpreter; and shared memory must be as it was. Some kills hit the trainer's whole process group. In
most trials the processes are started by a fork server that is there already, which saves its start; in the
others the trainer brings its own, and all that Python started for it must be gone in the end, too.
"""

import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.envs.toy import NestedEnv
from metta.envs.workers.worker_process import worker_context
from metta.testing.fault_env import FaultEnv

MARKER = "METTA_TRAINER_KILLS"
"""An environment variable by which every process of a trial with its own fork server is known."""
LIMIT_SECONDS = 2.0
HELPERS_LIMIT_SECONDS = 20.0
"""What Python's own helpers (fork server, resource tracker) may take: they may be importing."""
_MAX_WAIT = 60.0
_STARTING_SECONDS, _TRAINING_SECONDS = 1.0, 0.5
STATES = ("training", "stop", "starting", "freeze", "training", "hang", "starting")
"""What the trainer, or one of its workers, is at when it is killed."""
OWN_SERVER_EVERY = 6
NUM_PROCESSES = 3
"""Two workers and their guardian."""

Living = Callable[[], set[int]]


def start_server() -> None:
    """For the zygote: a fork server for all its children."""
    worker_context()
    forkserver.ensure_running()


def train(folder: str, mark: str, fault: str | None) -> None:
    """What the killed process does: it trains until then; without a mark, by the zygote's fork server."""
    from metta.rl.ppo_trainer import PPOTrainer  # only the zygote's children need it

    os.setpgid(0, 0)
    server = forkserver._forkserver
    if mark:
        os.environ[MARKER] = mark
        server._forkserver_pid = None
    else:
        # it runs, but it is the zygote's child, which Python does not expect
        server.ensure_running = lambda: None
    path = Path(folder)

    def make() -> Any:
        env = NestedEnv(image_size=2)
        if fault is None:
            return env
        return FaultEnv(env, fault, at_step=20, once_file=path / "happened")

    trainer = PPOTrainer(
        None, make, num_envs=4, num_workers=2, num_groups=2, hidden_size=8, verbose=False
    )
    trainer.collect_rollouts(2)
    (path / "training").touch()
    while True:
        trainer.learn(trainer.collect_rollouts(16))


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` kills, in turn over what the process is at."""
    chance = random.Random(seed)
    preload = ["faults.training:warm_up", "metta.rl.ppo_trainer", f"{__name__}:start_server"]
    with contextlib.ExitStack() as zygotes:
        server = 0
        for number in range(count):
            if not _stat(server):
                # Python's fork server ends if a client dies while it connects; a trainer's own one
                # should end then, but this one serves all trials
                zygotes.close()
                zygote = zygotes.enter_context(Zygote(preload, cwd=Path(__file__).parent.parent))
                server = _fork_server_of(zygote)
            state = STATES[number % len(STATES)]
            own_server = number % OWN_SERVER_EVERY == 0
            whole_group = chance.random() < 0.3
            path = folder / f"trial-{number}"
            path.mkdir()
            outcome, detail = kill_one(
                zygote, path, state, chance, server=0 if own_server else server,
                whole_group=whole_group,
            )  # fmt: skip
            point = state + ", own server" * own_server + ", process group" * whole_group
            yield Trial("trainer_kills", seed, point, outcome, None, detail)


def kill_one(
    zygote: Zygote,
    path: Path,
    state: str,
    chance: random.Random,
    *,
    server: int,
    whole_group: bool,
) -> tuple[str, dict[str, Any]]:
    """Start a trainer and kill it; `server` 0: it starts its own."""
    mark = "" if server else uuid.uuid4().hex
    living: Living = (lambda: children_of(server)) if server else (lambda: marked(mark))
    fault = state if state in ("stop", "freeze", "hang") else None
    child = zygote.start(f"{__name__}:train", folder=str(path), mark=mark, fault=fault)
    problem = wait_until(path, state, chance)
    # stopped first, so that no process starts while they are counted
    child.kill(signal.SIGSTOP)
    helpers = living() & children_of(child.pid)
    workers = living() - helpers
    if whole_group:
        with contextlib.suppress(ProcessLookupError):  # it did not get to making a group
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    killed = time.monotonic()
    problem = problem or ("" if child.wait() == -signal.SIGKILL else "it had ended before")
    if state != "starting" and len(workers) != NUM_PROCESSES:
        problem = problem or f"there were {len(workers)} workers and guardians"
    detail: dict[str, Any] = {"workers": len(workers)}
    problem = problem or await_none(lambda: living() - helpers, killed + LIMIT_SECONDS)
    detail["seconds"] = round(time.monotonic() - killed, 3)
    problem = problem or await_none(living, killed + HELPERS_LIMIT_SECONDS)
    detail["seconds_to_the_last"] = round(time.monotonic() - killed, 3)
    names = [file.name for file in Path("/dev/shm").iterdir()]
    pids = {child.pid, *helpers, *workers}
    shared = [name for name in names for pid in pids if f"-{pid}-" in name]
    if shared:
        problem = problem or f"shared memory is left: {shared}"
    return problem or OK, detail


def await_none(living: Living, deadline: float) -> str:
    """Wait until no process is left; returns a text if some are."""
    while left := living():
        if time.monotonic() > deadline:
            return f"{len(left)} processes are left"
        time.sleep(0.005)
    return ""


def wait_until(path: Path, state: str, chance: random.Random) -> str:
    """Let the process get into a state, and a random while further; what went wrong."""
    if state == "starting":
        time.sleep(chance.uniform(0.0, _STARTING_SECONDS))
        return ""
    awaited = path / ("training" if state == "training" else "happened")
    deadline = time.monotonic() + _MAX_WAIT
    while not awaited.exists():
        if time.monotonic() > deadline:
            return f"it did not come to {state}"
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, _TRAINING_SECONDS))
    return ""


def children_of(parent: int) -> set[int]:
    """Processes that live and have this parent."""
    return {pid for pid in _all_pids() if _stat(pid)[1:2] == [str(parent)]}


def marked(mark: str) -> set[int]:
    """Processes that live and have this mark among their environment variables."""
    needle, found = f"{MARKER}={mark}".encode(), set()
    for pid in _all_pids():
        try:
            if needle in Path(f"/proc/{pid}/environ").read_bytes() and _stat(pid):
                found.add(pid)
        except OSError:
            continue  # it ended while it was looked at
    return found


def _fork_server_of(zygote: Zygote) -> int:
    deadline = time.monotonic() + _MAX_WAIT
    while True:
        for pid in children_of(zygote._process.pid):
            if b"multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        # a process that has only just started has no arguments yet
        assert time.monotonic() < deadline, "the zygote has no fork server"
        time.sleep(0.005)


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """State, parent and so on; nothing where the process is gone, or only waits to be counted."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if stat[0] == "Z" else stat
