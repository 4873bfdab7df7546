"""`metta train` in a forked process whose console is a named pipe."""

import contextlib
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from metta.cli.main import main
from metta.errors import MettaWarning

TINY = ["num_envs=2", "horizon=16", "update_epochs=1", "num_minibatches=1", "hidden_size=8",
        "eval_episodes=0", "final_replay=false", "checkpoint_interval=5", "monitor_seconds=0"]  # fmt: skip


class TalkingEnv(CartPoleEnv):
    """Prints and warns in every step."""

    def step(self, action: Any) -> Any:
        print("a step is taken", flush=True)
        print("and somebody complains", file=sys.stderr, flush=True)
        for number in (1, 2):
            with contextlib.suppress(OSError):  # as a library in C prints
                os.write(number, b"past Python\n")
        warnings.warn("every step is worth a warning", MettaWarning, stacklevel=1)
        return super().step(action)


gymnasium.register("Talking-v0", TalkingEnv)


def train(
    run: str, steps: int, env: str = "CartPole-v1", console: str | None = None, nohup: bool = False
) -> None:
    """Train in a folder; stdout and stderr are the named pipe `console`, or files beside the run.

    With ``closed`` there is no stream at all, as Python finds it after ``<&- >&- 2>&-``.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    path = Path(run)
    if console == "closed":
        sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]  # as Python does
        os.closerange(0, 3)
    for number in (1, 2) if console != "closed" else ():
        target = console or str(path.parent / f"{path.name}-{number}.txt")
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT), number)
    words = [
        env,
        *TINY,
        f"total_timesteps={steps}",
        "--run",
        path.name,
        "--output",
        str(path.parent),
    ]
    warnings.simplefilter("always")
    code = main(["train", *words])
    if console == "closed":
        os._exit(code)  # the zygote would flush streams that are not there
    sys.exit(code)
