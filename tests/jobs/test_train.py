"""What a training job says of its processes."""

import os
import time
from multiprocessing.connection import Connection

from metta.envs.workers.worker_process import worker_context
from metta.jobs.train import cpu_seconds
from metta.processes import start_process

BURNT = 1.0


def burn(_: Connection, answers: Connection) -> None:
    while time.process_time() < BURNT:
        pass
    answers.send_bytes(str(os.getpid()).encode())


def test_the_time_of_workers_counts_although_a_fork_server_has_started_them() -> None:
    start_process(worker_context(), burn, (), "first").process.join()  # the server has imported
    before = cpu_seconds()
    start_process(worker_context(), burn, (), "worker").process.join()
    assert cpu_seconds() - before >= BURNT / 2
