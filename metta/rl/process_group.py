"""Ranks as processes: what torchrun started finds itself together, and notices who is gone."""

import atexit
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from metta.errors import ConfigError, RankError, RankGoneError
from metta.rl.ranks import Ranks, launched_ranks
from metta.train.train_config import SystemConfig

__all__ = ["join_ranks", "leave_ranks", "telling_others"]

_JOIN_SECONDS = 300.0
_NEVER = timedelta(days=7)
"""Ranks wait for as long as the master evaluates; one that is gone is noticed by its signs of life."""
_BEATS = 5
"""Heartbeats of a rank within the time after which it counts as gone."""
_SILENT_BEATS = 3
_LOOK_SECONDS = 0.05
_STORE_IS_GONE = "the process that keeps the ranks together is gone"

_watch: "_Watch | None" = None


def join_ranks(num_shards: int, device: torch.device, system: SystemConfig) -> Ranks:
    """The ranks of this run, once all of them are here; a single one needs no group.

    `RankError` names ranks that fail or end. One that gives no sign of life for `rank_timeout_seconds`
    counts as gone; this process then ends with an error, because what it waits for cannot come.
    """
    rank, size = launched_ranks()
    if size == 1:
        return Ranks(num_shards)
    Ranks(num_shards, rank, size)  # refused before anybody waits
    _require_trust(size, system)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            _meet(rank, size, backend, system.rank_timeout_seconds)
        except (RuntimeError, ValueError) as error:
            raise RankGoneError(
                f"rank {rank} of {size} could not meet the others at {os.environ.get('MASTER_ADDR')}:"
                f"{os.environ.get('MASTER_PORT')}: {error}"
            ) from error
    return Ranks(num_shards, rank, size, _gather)


def _require_trust(size: int, system: SystemConfig) -> None:
    """Ranks on several machines have no password, so somebody must say who can reach them."""
    own = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    if own < size and not system.trusted_network:
        raise ConfigError(
            f"{size} ranks on several machines meet at {os.environ.get('MASTER_ADDR')} without a password: "
            "whoever reaches the network between them can take part in the run. If only machines that you "
            "trust do, say so: system.trusted_network=true"
        )


def _meet(rank: int, size: int, backend: str, timeout_seconds: float) -> None:
    """The group; one that stops while it is made is noticed as well."""
    global _watch
    # torchrun keeps its store when it starts ranks again: what the last ones wrote is not for these
    store = PrefixStore(f"metta/ranks/{_attempt()}", _connect(hosts=rank == 0))
    _watch = _Watch(rank, size, timeout_seconds)
    atexit.register(leave_ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_NEVER)


def leave_ranks(problem: str = "") -> None:
    """This process is done, or failed with `problem`; others are told which.

    Until then it stays in the group: making another one for the next run could mix up the two.
    """
    global _watch
    if _watch is not None:
        _watch.close(problem)
        _watch = None
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def telling_others(ranks: Ranks) -> Iterator[None]:
    """If the block fails here, the other ranks learn why, and stop as well."""
    try:
        yield
    except BaseException as error:
        if ranks.size > 1:
            leave_ranks(f"{type(error).__name__}: {error}")
        raise


def _attempt() -> str:
    """How often torchrun has started the ranks again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _connect(*, hosts: bool = False) -> TCPStore:
    """A connection to the store of the ranks; the first rank `hosts` it if torchrun does not."""
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=hosts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        wait_for_workers=False,
        timeout=timedelta(seconds=_JOIN_SECONDS),
    )


def _gather(tensor: Tensor) -> Sequence[Tensor]:
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    try:
        dist.all_gather(found, tensor.contiguous())
    except RuntimeError as error:
        if _watch is None:
            raise RankGoneError("a rank is gone; every rank stops here") from error
        raise _watch.find_problem() from error
    return found


class _Watch:
    """Signs of life of this rank, and a look at those of the others."""

    def __init__(self, rank: int, size: int, timeout_seconds: float) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout_seconds
        # a connection of its own: one that waits for a collective cannot answer
        self._store = _connect()
        self._prefix = f"metta/life/{_attempt()}"
        self._store.set(f"{self._prefix}/place/{rank}", _own_place())
        self._store.set(f"{self._prefix}/beat/{rank}", "0")
        self._wait_for_all()
        self._siblings = dict(self._find_siblings())
        self._ended, self._asked = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="metta-ranks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seen: dict[int, tuple[str, float]] = {}
        number = 0
        while not self._ended.wait(self._timeout / _BEATS):
            number += 1
            try:
                with self._lock:
                    self._store.set(f"{self._prefix}/beat/{self._rank}", str(number))
                    beats = {other: self._read("beat", other) for other in self._others()}
            except RuntimeError:  # the store went with the process that held it
                self._die(_STORE_IS_GONE)
                return
            now = time.monotonic()
            for other, beat in beats.items():
                if beat != seen.get(other, ("", 0.0))[0]:
                    seen[other] = beat, now
                elif self._asked.is_set() or beat == "done":
                    continue  # the main thread is about to say what happened
                elif now - seen[other][1] > self._timeout:
                    if other in self._siblings:
                        self._siblings[other].kill()  # a stopped one would keep torchrun waiting
                    self._die(f"rank {other} gave no sign of life for {self._timeout:g} seconds")
                    return

    def _wait_for_all(self) -> None:
        """In steps: a signal can end this process between them."""
        late = time.monotonic() + _JOIN_SECONDS
        beats = [f"{self._prefix}/beat/{other}" for other in range(self._size)]
        while not self._store.check(beats):
            if time.monotonic() > late:
                raise RuntimeError(f"some ranks did not come within {_JOIN_SECONDS:g} seconds")
            time.sleep(_LOOK_SECONDS)

    def _find_siblings(self) -> Iterator[tuple[int, psutil.Process]]:
        """The other ranks that the same torchrun has started, on this machine."""
        own, parent = _own_place(), os.getppid()
        for other in self._others():
            place, _, pid = self._read("place", other).rpartition(" ")
            if place == own.rpartition(" ")[0] and pid.isdigit():
                with suppress(psutil.Error):
                    process = psutil.Process(int(pid))
                    if process.ppid() == parent:
                        yield other, process

    def _is_dead(self, rank: int) -> bool:
        """Whether a rank on this machine has ended; False also where that is not known."""
        with suppress(psutil.NoSuchProcess):
            process = self._siblings.get(rank)
            return process is not None and process.status() == psutil.STATUS_ZOMBIE
        return True

    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def _read(self, kind: str, rank: int) -> str:
        key = f"{self._prefix}/{kind}/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _die(self, problem: str) -> None:
        """End this process: its main thread may wait for what cannot come, and cannot be interrupted."""
        sys.stderr.write(f"metta: rank {self._rank} ends: {problem}\n")
        sys.stderr.flush()
        os._exit(RankGoneError.exit_code)

    def find_problem(self) -> RankError:
        """Which rank failed, by what it said, or else by who gives no signs of life any more."""
        self._asked.set()
        last: dict[int, str] = {}
        silent = dict.fromkeys(self._others(), 0)
        for _ in range(2 * _BEATS):
            try:
                with self._lock:
                    said = {other: self._read("problem", other) for other in silent}
                    beats = {other: self._read("beat", other) for other in silent}
            except RuntimeError:
                return RankGoneError(_STORE_IS_GONE)
            for other, problem in said.items():
                if problem:
                    return _told(other, problem)
                silent[other] = silent[other] + 1 if beats[other] == last.get(other) else 0
            gone = [
                str(other)
                for other, times in silent.items()
                if times >= _SILENT_BEATS or self._is_dead(other)
            ]
            if gone:
                return RankGoneError(f"rank {', '.join(gone)} is gone; every rank stops here")
            last = beats
            time.sleep(self._timeout / _BEATS)
        return RankGoneError("a rank is gone; every rank stops here")

    def close(self, problem: str) -> None:
        """Tell the others how this rank ended; they no longer wait for its signs of life."""
        self._ended.set()
        try:
            with self._lock:
                if problem:
                    self._store.set(f"{self._prefix}/problem/{self._rank}", problem)
                self._store.set(f"{self._prefix}/beat/{self._rank}", "done")
        except RuntimeError:  # the store went with the process that held it
            pass
        # Python ends daemon threads in the middle of calls into C++, which abort then
        self._thread.join(self._timeout)


def _told(rank: int, problem: str) -> RankError:
    """What a rank said before it ended; where it only noticed that another one is gone, the same here."""
    kind, _, text = problem.partition(": ")
    if kind == RankGoneError.__name__:
        return RankGoneError(text)
    return RankError(f"rank {rank} failed: {problem}; every rank stops here")


def _own_place() -> str:
    """This machine and process."""
    return f"{platform.node()} {os.getpid()}"
