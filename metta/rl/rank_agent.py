"""The process above the ranks of a run: torchrun's agent, which starts them again when one is lost.

    python -m metta.rl.rank_agent NUM_RANKS MAX_RESTARTS TIMEOUT python -m metta train CartPole-v1 ...

Ranks meet on loopback only. A rank that failed by itself ends the run: it would fail again.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping

import psutil
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from metta.envs.workers.supervision import RestartBudget
from metta.errors import RankGoneError
from metta.rl.ranks import RESTART_REASON

__all__ = ["exit_code_of", "main", "reason_to_restart"]

_LOOPBACK = "127.0.0.1"
_LOOPBACK_DEVICE = "lo0" if sys.platform == "darwin" else "lo"
_FAILED, _SIGNALS = 1, 128
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The agent sends the first to ranks that remain; Python turns it into the second while it imports."""
_STOP_SECONDS = 24 * 3600
"""Ranks that were told to stop end their epoch and save; a second signal ends them at once."""


class RankAgent(LocalElasticAgent):
    """Starts all ranks again when one is lost; every other failure ends the run."""

    def __init__(
        self, num_ranks: int, budget: RestartBudget, timeout: float, command: list[str]
    ) -> None:
        self._budget, self._timeout = budget, timeout
        self._stopped: dict[int, float] = {}
        """Processes that are stopped, since when."""
        spec = WorkerSpec(
            role="rank",
            local_world_size=num_ranks,
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=_OneMachine(),
            max_restarts=sys.maxsize,  # the budget decides
            local_addr=_LOOPBACK,
        )
        super().__init__(spec, DefaultLogsSpecs(), shutdown_timeout=_STOP_SECONDS)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._end_stopped()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            reason = reason_to_restart(_codes_of(result))
            if reason is None:
                self._remaining_restarts = 0
            elif self._budget.spend():
                _say(f"{reason}; all ranks start again from the last checkpoint")
                os.environ[RESTART_REASON] = reason
            else:
                self._remaining_restarts = 0
                _say(f"{reason}; {_tries(self._budget.max_restarts)}resume the run to continue")
        return result

    def _end_stopped(self) -> None:
        """A rank that is stopped before it meets the others gives no signs of life that they could miss."""
        now, pids = time.monotonic(), {} if self._pcontext is None else self._pcontext.pids()
        self._stopped = {
            pid: self._stopped.get(pid, now) for pid in pids.values() if _is_stopped(pid)
        }
        for pid, since in self._stopped.items():
            if now - since > self._timeout:
                os.kill(pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def reason_to_restart(codes: Mapping[int, int]) -> str | None:
    """Which rank is gone, and why; None: a rank ended by itself, and would do so again."""
    if _own_codes(codes):
        return None
    for rank, code in sorted(codes.items()):
        if code < 0 and -code not in _ASKED_TO_END:
            return f"rank {rank} was ended by {signal.Signals(-code).name}"
    return "a rank is gone" if RankGoneError.exit_code in codes.values() else None


def _own_codes(codes: Mapping[int, int]) -> list[int]:
    """Exit codes of ranks that failed, and not because of another one, or of a signal."""
    return [
        code for code in codes.values() if 0 < code < _SIGNALS and code != RankGoneError.exit_code
    ]


def exit_code_of(codes: Mapping[int, int]) -> int:
    """That of a rank that failed, or was stopped by a signal; ``1`` where one was lost."""
    if reason_to_restart(codes) is not None:
        return _FAILED
    stopped = [code for code in codes.values() if code >= _SIGNALS]
    return max(_own_codes(codes) or stopped, default=_FAILED) if codes else 0


def _tries(max_restarts: int) -> str:
    return f"{max_restarts} restarts within an hour did not help; " if max_restarts else ""


def _say(text: str) -> None:
    sys.stderr.write(f"metta: {text}\n")
    sys.stderr.flush()


class _OneMachine(RendezvousHandler):
    """Where ranks of one machine meet. Those of torch listen on all interfaces."""

    def __init__(self) -> None:
        self._store, self._run_id, self._round = _store_on_loopback(), uuid.uuid4().hex, 0

    use_agent_store = True

    def get_backend(self) -> str:
        return "loopback"

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        self._round += 1
        own = PrefixStore(f"agent/{self._round}", self._store)
        return RendezvousInfo(own, 0, 1, RendezvousStoreInfo(_LOOPBACK, self._store.port))

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


def _store_on_loopback() -> TCPStore:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((_LOOPBACK, 0))
    listener.listen()
    port = listener.getsockname()[1]
    # the store closes the socket
    return TCPStore(_LOOPBACK, port, is_master=True, wait_for_workers=False,
                    master_listen_fd=listener.detach())  # fmt: skip


def _codes_of(result: RunResult) -> dict[int, int]:
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def main(words: list[str]) -> int:
    """Run a command as so many ranks; returns the exit code."""
    num_ranks, max_restarts, timeout, *command = words
    logging.disable()  # this process says what happens in words of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # metta sets threads itself
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK_DEVICE)
    budget = RestartBudget(int(max_restarts))
    agent = RankAgent(int(num_ranks), budget, float(timeout), command)
    try:
        return exit_code_of(_codes_of(agent.run()))
    except SignalException as received:
        return _SIGNALS + received.sigval


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
