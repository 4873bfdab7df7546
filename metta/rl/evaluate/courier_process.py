"""The trainer's side of the courier, the program that opens the database: lines of JSON over two pipes."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from metta.processes import python_command

__all__ = ["CourierProcess"]

_PROGRAM = "metta.jobs.courier"
_CHUNK_BYTES = 1 << 16
_END_SECONDS = 10.0


class CourierProcess:
    """A courier that runs. What is sent waits here if it does not read: nobody waits for it.

    It ends when its standard input does, and so with the process that started it.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_command(_PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the trainer
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self.pid = self._process.pid
        self.has_ended = False
        """Whether nothing more can come."""
        self._unsent, self._received = bytearray(), bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or as soon as there is room in the pipe."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._write()

    def receive(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Messages that came; waits so long for the first one."""
        deadline = time.monotonic() + seconds
        while True:
            self._write()
            self._read()
            *lines, rest = self._received.split(b"\n")
            left = deadline - time.monotonic()
            if lines or self.has_ended or left <= 0:
                self._received = rest
                return [json.loads(line) for line in lines]
            self._poll(left)

    def _poll(self, seconds: float) -> None:
        poller = select.poll()
        poller.register(self._stdout.fileno(), select.POLLIN)
        if self._unsent:
            poller.register(self._stdin.fileno(), select.POLLOUT)
        poller.poll(seconds * 1000.0)

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent and not self.has_ended:
                del self._unsent[: os.write(self._stdin.fileno(), self._unsent)]

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self.has_ended:
                part = os.read(self._stdout.fileno(), _CHUNK_BYTES)
                self._received += part
                self.has_ended = not part

    def end(self) -> None:
        """Let it end, and kill it if it does not."""
        self.has_ended = True
        self._stdin.close()
        self._stdout.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
