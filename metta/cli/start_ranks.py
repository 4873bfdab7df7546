"""Several processes for one command: it becomes torchrun, which starts it again as each of the ranks."""

import os
import sys

from metta.rl.ranks import launched_ranks
from metta.train.train_config import SystemConfig

__all__ = ["start_ranks"]


def start_ranks(system: SystemConfig) -> None:
    """Replace this process by torchrun's agent if the settings want ranks, and nobody has started them.

    They find each other on this machine only.
    """
    _, size = launched_ranks()
    if system.num_processes == 1 or size > 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    count = str(system.num_processes)
    agent = ["metta.ranks_on_loopback", "--standalone", "--nproc-per-node", count, "-m", "--"]
    # torchrun says at length that it sets the first, where nobody did; metta sets threads itself. With the
    # second, no module is imported because it lies in the current folder
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-m", *agent, "metta", *sys.argv[1:]], environment)
