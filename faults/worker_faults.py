"""Workers that raise, end, crash, stop, hang, dawdle or talk nonsense, at random steps.

With a budget, environments in workers are played beside the same ones in this process: whatever happens
to the workers, both must tell the same, to the bit. Without one (or with one that is spent), the error must
name the worker and carry the original traceback. Either way nothing may hang, and no process, descriptor
or shared memory may be left.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from faults.saved_envs import SavedNested
from faults.trial import OK, Trial
from metta.envs.backends.multiprocess import MultiprocessVecEnv
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.vec_env import VecEnv
from metta.errors import EnvError
from metta.stateful import digest_of
from metta.testing.fault_env import FaultEnv

# workers need not import this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEP_TIMEOUT, START_TIMEOUT, SLOW_SECONDS = 1.0, 6.0, 0.3
DEATHS = {"exit": "exit code 3", "segfault": "exit code -11", "kill": "exit code -9"}
SILENCE = dict.fromkeys(("stop", "hang", "freeze"), "did not answer within ")
FAULTS = {
    **DEATHS,
    **SILENCE,
    "garbage": "something that is not an answer",
    "raise": "fails on purpose",
    "slow": "",
}
"""Fault -> what the error must contain; empty: there must be no error."""
SIGNALS = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}
TRIALS_PER_SESSION = 6
MAX_TRIAL = 20.0
_SHARE_WITH_STATES = 0.4


class Lag(threading.Thread):
    """How long this process was not run at all: a busy machine notices nothing in the meantime."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest, self._is_over = 0.0, False
        self.start()

    def run(self) -> None:
        last = time.monotonic()
        while not self._is_over:
            time.sleep(0.01)
            now = time.monotonic()
            self.largest, last = max(self.largest, now - last - 0.01), now

    def end(self) -> float:
        """The longest time."""
        self._is_over = True
        self.join()
        return self.largest


class CommandedEnv(gymnasium.Wrapper):
    """Misbehaves once, as a file asks: the trainer decides where and when."""

    def __init__(self, order: Path) -> None:
        super().__init__(SavedNested(image_size=2))
        self.order = str(order)

    def step(self, action: Any) -> Any:
        faulty = self._faulty(1)
        return self.env.step(action) if faulty is None else faulty.step(action)

    def reset(self, **options: Any) -> Any:
        faulty = self._faulty(0)
        return self.env.reset(**options) if faulty is None else faulty.reset(**options)

    def get_state(self) -> None:
        """It has none."""

    def set_state(self, state: None) -> None:
        """It has none."""

    def _faulty(self, at_step: int) -> FaultEnv | None:
        order = Path(self.order)
        if not order.exists():
            return None
        fault = order.read_text()
        order.unlink()
        done = order.with_suffix(".done")
        return FaultEnv(self.env, fault, at_step=at_step, once_file=done, seconds=SLOW_SECONDS)


class Session:
    """The same environments twice: in workers that may fail, and in this process."""

    places: tuple[str, ...] = ("step", "step", "step", "reset", "idle", "several")
    """Where faults may fall."""

    def __init__(self, folder: Path, chance: random.Random, **options: Any) -> None:
        self.num_workers, self.num_groups = chance.randint(1, 4), chance.randint(1, 2)
        self.num_rows = self.num_workers * self.num_groups * chance.randint(1, 2)
        folder.mkdir()
        self.orders = [folder / f"row-{row}.order" for row in range(self.num_rows)]
        self.workers = MultiprocessVecEnv(
            [lambda order=order: CommandedEnv(order) for order in self.orders],
            self.num_workers,
            self.num_groups,
            step_timeout_seconds=STEP_TIMEOUT,
            start_timeout_seconds=START_TIMEOUT,
            **options,
        )
        self.pids = set(self.workers.worker_pids)
        self.serial = SerialVecEnv(
            [lambda: SavedNested(image_size=2)] * self.num_rows, self.num_groups
        )
        self.generator = np.random.default_rng(chance.getrandbits(30))

    def order(self, row: int, fault: str) -> None:
        self.orders[row].write_text(fault)

    def happened_at(self) -> list[float]:
        """When the ordered faults happened; they are then forgotten."""
        times = []
        for order in self.orders:
            done = order.with_suffix(".done")
            if done.exists():
                times.append(float(done.read_text().split()[1]))
                done.unlink()
        return times

    def worker_of(self, row: int) -> int:
        return next(
            index
            for index, job in enumerate(self.workers._pool._jobs)
            if any(first <= row < stop for first, stop in job.row_ranges)
        )

    def reset(self, seed: int) -> bool:
        seeds = range(seed, seed + self.num_rows)
        return self._alike(lambda vec_env: _reset(vec_env, seeds))

    def step(self) -> bool:
        """One step of all groups at once; returns whether both gave the same results."""
        size = self.num_rows // self.num_groups
        actions = [self.generator.integers(0, 3, size) for _ in range(self.num_groups)]
        return self._alike(lambda vec_env: _step(vec_env, actions, size))

    def steps(self, count: int) -> bool:
        return sum(self.step() for _ in range(count)) == count

    def state(self) -> str:
        return digest_of(self.workers.state_dict())

    def _alike(self, act: Callable[[Any], Any]) -> bool:
        told, expected = act(self.workers), act(self.serial)
        self.pids.update(self.workers.worker_pids)
        return bool(told == expected)

    def close(self) -> list[str]:
        """What is left behind; nothing, one hopes."""
        for vec_env in (self.workers, self.serial, self.workers):
            vec_env.close()
        left = [f"process {pid} is left" for pid in self.pids if _is_alive(pid)]
        ours = {os.getpid(), *self.pids}
        shared = [path.name for path in Path("/dev/shm").iterdir()]
        left += [f"{name} is left" for name in shared for pid in ours if f"-{pid}-" in name]
        return left


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` faults: most with a budget, some without, some with one that gets spent."""
    chance = random.Random(seed)
    close_one(folder / "warm-up", chance)
    descriptors, memory = _num_descriptors(), _shared_bytes()
    done, turn = 0, 0
    while done < count:
        kind = list(KINDS)[turn % len(KINDS)]
        found = list(KINDS[kind](folder / f"session-{turn}", chance, count - done))
        gc.collect()
        if _num_descriptors() > descriptors:
            found[-1] = (*found[-1][:1], f"{_num_descriptors() - descriptors} descriptors left", {})
        if _shared_bytes() > memory:
            found[-1] = (*found[-1][:1], f"{_shared_bytes() - memory} shared bytes left", {})
        for point, outcome, detail in found:
            yield Trial("worker_faults", seed, f"{kind}: {point}", outcome, None, detail)
        done, turn = done + len(found), turn + 1


Found = tuple[str, str, dict[str, Any]]
"""Point, outcome, detail."""


def close_one(folder: Path, chance: random.Random) -> None:
    """Everything that is opened once and for all is then open."""
    session = Session(folder, chance)
    session.reset(0)
    session.close()


def revived(folder: Path, chance: random.Random, at_most: int) -> Iterator[Found]:
    """Faults that must not change anything, many in one session."""
    session = Session(folder, chance, max_worker_restarts=10**6, on_env_error="restart")
    if chance.random() < _SHARE_WITH_STATES:
        session.workers.prepare_restore("snapshot")
        session.places = (*session.places, "state")
    session.reset(chance.getrandbits(20))
    found: list[Found] = []
    while len(found) < min(at_most, TRIALS_PER_SESSION):
        found.append(_timed(lambda: _revived_once(session, chance)))
        if found[-1][1] != OK:
            break
    left = session.close()
    yield from found[:-1]
    yield found[-1] if not left else (found[-1][0], "; ".join(left), found[-1][2])


def _revived_once(session: Session, chance: random.Random) -> Found:
    alike = session.steps(chance.randrange(8))
    before = len(session.workers.restarts)
    where = chance.choice(session.places)
    num_faults = min(session.num_rows, 2 if where == "several" else 1)
    rows = chance.sample(range(session.num_rows), num_faults)
    state = session.state() if where == "state" else ""
    faults, happened = _inject(session, where, rows, chance)
    if where == "state":
        alike &= session.state() == state
    elif where == "reset":
        alike &= session.reset(chance.getrandbits(20))
    else:
        alike &= session.step()
    happened += session.happened_at()
    alike &= session.steps(3)
    restarts = session.workers.restarts[before:]
    point = f"{where}: {', '.join(sorted(faults))}"
    detail: dict[str, Any] = {"workers": session.num_workers, "groups": session.num_groups}
    expected = {session.worker_of(row) for row, fault in zip(rows, faults, strict=True)
                if fault != "slow"}  # fmt: skip
    if len(happened) != len(faults):
        return point, f"{len(happened)} of {len(faults)} faults happened", detail
    if {restart.failure.worker for restart in restarts} != expected or len(restarts) > len(faults):
        return point, f"restarted {[r.failure.message for r in restarts]}", detail
    if not alike or any(restart.outcome != "exact" for restart in restarts):
        return point, f"not as if nothing had happened: {[r.outcome for r in restarts]}", detail
    if restarts:
        detail["seconds"] = round(restarts[0].failure.noticed_at - min(happened), 4)
    problem = _problem_with([r.failure.message for r in restarts], faults)
    patience = START_TIMEOUT if where == "reset" else STEP_TIMEOUT
    detail["allowed"] = 1.0 + (patience if set(faults) & set(SILENCE) else 0.0)
    return point, problem or OK, detail


def _inject(
    session: Session, where: str, rows: list[int], chance: random.Random
) -> tuple[list[str], list[float]]:
    """Faults, and when those happened that happen right now."""
    if where in ("idle", "state"):
        fault = "kill" if where == "state" else chance.choice(list(SIGNALS))
        os.kill(session.workers.worker_pids[session.worker_of(rows[0])], SIGNALS[fault])
        return [fault], [time.monotonic()]
    # a silent reset is waited for as long as a silent start: one way of being silent has to do
    known = [fault for fault in FAULTS if where != "reset" or fault not in ("hang", "freeze")]
    faults = [chance.choice(known) for _ in rows]
    if len(rows) > 1 and session.worker_of(rows[0]) == session.worker_of(rows[1]):
        # the first to fail takes the other with it
        faults[1] = "slow"
    for row, fault in zip(rows, faults, strict=True):
        session.order(row, fault)
    return faults, []


def failing(folder: Path, chance: random.Random, at_most: int) -> Iterator[Found]:
    """One fault that must end everything: no restarts are allowed, or no errors."""
    del at_most
    fault = chance.choice(list(FAULTS))
    options = {"max_worker_restarts": 0}
    if fault == "raise" and chance.random() < 0.5:
        options = {"max_worker_restarts": 3}
    yield _timed(lambda: _fail(Session(folder, chance, **options), [fault], chance))


def spending(folder: Path, chance: random.Random, at_most: int) -> Iterator[Found]:
    """One fault too many."""
    del at_most
    faults = [chance.choice([fault for fault in FAULTS if fault != "slow"]) for _ in range(2)]
    options = {"max_worker_restarts": 1, "on_env_error": "restart"}
    yield _timed(lambda: _fail(Session(folder, chance, **options), faults, chance))


KINDS = {"revived": revived, "fail": failing, "spent": spending}
"""In turn; there are several faults in each session of the first."""


def _fail(session: Session, faults: list[str], chance: random.Random) -> Found:
    session.reset(chance.getrandbits(20))
    row = chance.randrange(session.num_rows)
    name = f"worker {session.worker_of(row)} (pid "
    message, happened, noticed = "", [], 0.0
    for number, fault in enumerate(faults):
        session.steps(chance.randrange(6))
        session.order(row, fault)
        try:
            session.step()
        except EnvError as error:
            message = str(error) if number == len(faults) - 1 else f"too early: {error}"
        noticed = time.monotonic()
        happened += session.happened_at()
        if message:
            break
    left = session.close()
    detail = {"workers": session.num_workers, "groups": session.num_groups}
    point, fault = ", ".join(faults), faults[-1]
    if len(happened) != len(faults):
        return point, f"{len(happened)} of {len(faults)} faults happened: {message}", detail
    if left:
        return point, "; ".join(left), detail
    problem = _problem_with([message] if message else [], [fault])
    if not problem and message and name not in message:
        problem = f"{name!r} is not in {message!r}"
    if not problem and len(faults) > 1 and "1 restarts" not in message:
        problem = f"the budget is not named in {message!r}"
    detail["seconds"] = round(noticed - happened[-1], 4)
    # stopping the others takes up to a second more
    detail["allowed"] = 2.0 + (STEP_TIMEOUT if fault in SILENCE else 0.0)
    return point, problem or OK, detail


def _problem_with(messages: list[str], faults: list[str]) -> str:
    said = "\n".join(messages)
    for fault in faults:
        if FAULTS[fault] not in said or (fault == "slow" and len(faults) == 1 and said):
            return f"{fault}: {said!r}"
        if fault == "raise" and not all(
            part in said
            for part in ("original traceback:\nTraceback", "_misbehave", "InjectedFaultError")
        ):
            return f"no original traceback in {said!r}"
    return ""


def _timed(trial: Callable[[], Found]) -> Found:
    begin, lag = time.monotonic(), Lag()
    point, outcome, detail = trial()
    lasted, detail["lag"] = time.monotonic() - begin, round(lag.end(), 4)
    if outcome == OK and detail.get("seconds", 0.0) - detail["lag"] > detail["allowed"]:
        outcome = f"noticed after {detail['seconds']} s"
    if outcome == OK and lasted > MAX_TRIAL:
        outcome = f"took {lasted:.0f} s"
    return point, outcome, detail


def _reset(vec_env: VecEnv, seeds: range) -> list[bytes]:
    obs = vec_env.obs_spec.zeros(vec_env.num_rows)
    result = vec_env.reset(seeds, obs)
    return [array.tobytes() for array in (*obs.values(), result.starts, result.valid)]


def _step(vec_env: VecEnv, actions: list[np.ndarray], size: int) -> list[Any]:
    told: list[Any] = []
    for group, part in enumerate(actions):
        vec_env.send(group, part)
    for group in range(len(actions)):
        obs = vec_env.obs_spec.zeros(size)
        result = vec_env.recv(group, obs)
        arrays = [result.rewards, result.terminated, result.truncated, result.valid, result.starts]
        if result.final is not None:
            arrays += [result.final.rows, *result.final.obs.values()]
        told += [array.tobytes() for array in (*obs.values(), *arrays)]
        told += [result.infos, result.lost]
    return told


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _shared_bytes() -> int:
    """Of this process's memory that is multiprocessing's to share."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/pym-" in line:
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total
