"""Several processes for one command: it becomes the agent that starts it again as each of the ranks."""

import os
import sys

from metta.errors import ConfigError
from metta.rl.ranks import launched_ranks
from metta.train.train_config import SystemConfig

__all__ = ["require_name_for_restarts", "start_ranks"]


def start_ranks(system: SystemConfig, *more_words: str) -> None:
    """Replace this process by the agent if the settings want ranks, and nobody has started them.

    Each rank gets the words of this command, and `more_words`. They find each other on this machine only.
    """
    _, size = launched_ranks()
    if system.num_processes == 1 or size > 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = system.num_processes, system.max_rank_restarts, system.rank_timeout_seconds
    # no module is imported because it lies in the current folder
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "metta", *sys.argv[1:], *more_words]
    agent = [sys.executable, "-m", "metta.rl.rank_agent", *map(str, numbers)]
    os.execve(sys.executable, [*agent, *command], environment)


def require_name_for_restarts(run: str | None) -> None:
    """Ranks that torchrun starts again must find the run that they began."""
    if run is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise ConfigError(
            "torchrun was told to start ranks again (--max-restarts), and they would begin another run; "
            "name it with --run NAME, so that they continue it"
        )
