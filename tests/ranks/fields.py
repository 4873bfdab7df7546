"""What every field of the state containers holds on the ranks of a run.

torchrun --nproc-per-node 2 -m tests.ranks.fields FOLDER    # prints digests: container -> field -> ranks
"""

import json
import sys
from pathlib import Path
from typing import Any

from metta import TrainerHook
from metta.rl.training_state import fields_on
from metta.stateful import digest_of
from tests.ranks.kinds import trainer_of


class Stopping(TrainerHook):
    """One rank leaves a note and asks for a stop."""

    ranks = "all"

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_epoch_end(self, trainer_state: Any) -> None:
        trainer_state.shared["seen by"] = self.rank
        if self.rank and trainer_state.epoch == 2:
            trainer_state.request_stop("enough")


def plain(value: Any) -> Any:
    value = value.to_dict() if hasattr(value, "to_dict") else value
    return list(value) if type(value).__name__ == "deque" else value


def main() -> None:
    settings = {"eval_episodes": 2, "evaluate_interval": 1, "log_interval": 2}
    with trainer_of("mlp", Path(sys.argv[1]), 8, **settings) as trainer:
        trainer.add_hook(Stopping(trainer.ranks.rank))
        trainer.train()
        state = trainer.state
        own = {
            type(part).__name__: {
                name: digest_of(plain(getattr(part, name))) for name in fields_on(type(part))
            }
            for part in (state, state.stats, state.policies)
        }
        found = [json.loads(text) for text in trainer.ranks.share(json.dumps(own).encode())]
        if trainer.ranks.is_master:
            sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
