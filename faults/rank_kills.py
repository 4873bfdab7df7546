"""Runs of two ranks that are killed or stopped at random instants end with the bits of one that was not.

Three kinds of disturbance, several in each run: all processes are killed and the command is given again, on
another number of ranks in one of five; one rank is killed; one rank is stopped for good. After the last two
the run continues by itself. Rows of metrics and the last checkpoint are compared; no process may be left.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from faults.splits import first_other_row
from faults.trainer_kills import MARKER, await_none, marked
from faults.training import comparable_rows
from faults.trial import OK, Trial
from metta.stateful import digest_of
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint

KINDS = {
    "normalised": ["CartPole-v1", "normalize_observations=true", "normalize_returns=true"],
    "lstm": ["CartPole-v1", "core=lstm"],
    "adaptive": ["Pendulum-v1", "schedule=adaptive_kl", "target_kl=0.02"],
    "grid": ["grid/gather", "curriculum.kind=random", "buckets={num_resources: [4, 8]}"],
}
EPOCHS = 60
WAYS = ("all", "one", "all", "one", "all", "one", "all", "one", "all", "one", "stop")
"""Of 110 disturbances 50 end all processes, 50 a rank, and 10 stop one."""
PER_RUN = 5
RANK_TIMEOUT = 3
NOTICED_SECONDS = 15.0
"""Within which the other ranks must have ended, once one is killed or `RANK_TIMEOUT` after it stopped."""
_END_SECONDS = 600.0


@dataclass
class _Run:
    """One run in its folder, whose command may be given several times."""

    kind: str
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def path(self) -> Path:
        return self.folder / "run"

    def start(self, num_ranks: int = 2) -> None:
        words = [
            "train", *KINDS[self.kind], "num_envs=8", "num_shards=4", "horizon=16", "hidden_size=8",
            "update_epochs=1", "num_minibatches=2", "recipe=none", "eval_episodes=0", "final_replay=false",
            "checkpoint_interval=3", "monitor_seconds=0", "max_rank_restarts=1000", "verbose=false",
            f"total_timesteps={EPOCHS * 16 * self.rows}", f"num_processes={num_ranks}",
            f"rank_timeout_seconds={RANK_TIMEOUT}", "--runs", str(self.folder), "--run", "run",
        ]  # fmt: skip
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "output.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "metta", *words], stdout=log, stderr=log,
                env=os.environ | {MARKER: self.mark}, cwd=Path(__file__).parent.parent,
            )  # fmt: skip

    @property
    def rows(self) -> int:
        return 32 if self.kind == "grid" else 8

    def is_over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def ranks(self) -> dict[int, int]:
        """Processes that are ranks now; none while they start."""
        found: dict[int, int] = {}
        for pid in marked(self.mark):
            with contextlib.suppress(psutil.Error):
                environment = psutil.Process(pid).environ()
                if "LOCAL_RANK" in environment and os.getpgid(pid) == pid:
                    found[int(environment["RANK"])] = pid
        return found

    def kill_all(self) -> str:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)  # it would start ranks again
        for pid in [*self.ranks().values(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return await_none(lambda: marked(self.mark), time.monotonic() + NOTICED_SECONDS)

    def lose_one(self, number: signal.Signals, chance: random.Random) -> tuple[str, float]:
        """Kill or stop a rank; what is wrong, and after how long all ranks had ended."""
        ranks = self.ranks()
        if len(ranks) < 2:
            return "", 0.0
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[chance.choice(sorted(ranks))], number)
        begin = time.monotonic()
        late = begin + NOTICED_SECONDS + (RANK_TIMEOUT if number == signal.SIGSTOP else 0)
        problem = await_none(lambda: set(ranks.values()) & marked(self.mark), late)
        return problem and "the loss of a rank was not noticed", time.monotonic() - begin

    def finish(self) -> str:
        assert self.process is not None
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_all()
            return "it hangs"
        if code:
            return f"exit code {code}: {(self.folder / 'output.txt').read_text()[-300:]!r}"
        return await_none(lambda: marked(self.mark), time.monotonic() + NOTICED_SECONDS)


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` disturbances, `PER_RUN` of them in each run."""
    chance, wholes, done = random.Random(seed), {}, 0
    while done < count:
        kind = list(KINDS)[done // PER_RUN % len(KINDS)]
        if kind not in wholes:
            begin = time.monotonic()
            run = _Run(kind, folder / f"{kind}-whole")
            run.start()
            assert run.finish() == "", (run.folder / "output.txt").read_text()
            wholes[kind] = run.path, time.monotonic() - begin
        whole, seconds = wholes[kind]
        ways = [WAYS[number % len(WAYS)] for number in range(done, min(done + PER_RUN, count))]
        found = list(disturbed(_Run(kind, folder / f"{kind}-{done}"), ways, whole, seconds, chance))
        done += len(found)
        yield from (Trial("rank_kills", seed, *one) for one in found)


def disturbed(
    run: _Run, ways: Sequence[str], whole: Path, seconds: float, chance: random.Random
) -> Iterator[tuple[str, str, str | None, dict[str, float]]]:
    """Disturb a run in these ways; those for which it was over too soon are not among the results."""
    points, problems = [], []
    run.start()
    for way in ways:
        time.sleep(chance.uniform(0, 0.9 * seconds))
        if run.is_over():
            break
        noticed = 0.0
        if way == "all":
            problem = run.kill_all()
            num_ranks = chance.choice([1, 2, 2, 2, 2, 4]) if chance.random() < 0.6 else 2
            run.start(num_ranks)
            point = f"{run.kind}: all killed, then {num_ranks}"
        else:
            number = signal.SIGKILL if way == "one" else signal.SIGSTOP
            problem, noticed = run.lose_one(number, chance)
            if not noticed:
                continue  # ranks had not started
            point = f"{run.kind}: one {'killed' if way == 'one' else 'stopped'}"
        points.append((point, {"noticed": round(noticed, 2)}))
        problems.append(problem)
    problem = run.finish() or next(filter(None, problems), "")
    outcome, digest = (problem, None) if problem else compare(whole, run.path)
    for point, detail in points:
        yield point, outcome, digest, detail


def compare(whole: Path, path: Path) -> tuple[str, str | None]:
    """ "ok" or how two runs differ, and the digest of the last checkpoint."""
    rows = comparable_rows(whole), comparable_rows(path)
    if rows[0] != rows[1]:
        return f"other rows of metrics: {first_other_row(*rows)}", None
    digests = [last_digest(run) for run in (whole, path)]
    return (OK, digests[1]) if digests[0] == digests[1] else ("another checkpoint", None)


def last_digest(run: Path) -> str:
    """Of the last checkpoint, without what names files, processes and machines."""
    snapshot = read_checkpoint(list_checkpoints(run / "checkpoints")[-1].path).snapshot
    return digest_of(
        {k: v for k, v in snapshot.items() if k not in ("conditions", "policy_tracker")}
    )
