"""The command `metta` in a forked process that dies while it sets a run up."""

import os
from pathlib import Path
from typing import Any

from metta import files
from metta.cli.main import main
from metta.rl.components import trainer

WORDS = ["CartPole-v1", "num_envs=2", "horizon=16", "hidden_size=8", "update_epochs=1",
         "num_minibatches=1", "checkpoint_interval=1", "monitor_seconds=0", "verbose=false",
         "eval_episodes=0", "final_replay=false", "env_restore=boundary"]  # fmt: skip
IN_A_WRITE, SET_UP = 41, 42
"""Exit codes."""


def run_until(words: list[str], writes: int) -> None:
    """Die when so many files are written, before the next one gets its name, or before the first epoch."""
    rename, done = files.rename, []

    def counted(source: Path, target: Path) -> None:
        if len(done) == writes:
            os._exit(IN_A_WRITE)
        rename(source, target)
        done.append(target.name)

    def die(*_: Any, **__: Any) -> None:
        os._exit(SET_UP)

    files.rename = counted
    trainer.run_training = die
    raise SystemExit(main(words))
