"""Stopped, run again, the same: one script left alone, one that fails in the middle and is run again.

python examples/resume_exactly.py [--steps N]
"""

import argparse
import tempfile
from pathlib import Path

from metta import PPOTrainer, TrainerHook
from metta.errors import HookError
from metta.testing import DigestHook, compare_digests, read_digests

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4_096, help="agent steps of each run")
steps = parser.parse_args().steps
STEPS_PER_EPOCH = 8 * 32


class Failure(TrainerHook):
    """Breaks into a chosen epoch, when its rollout is collected and nothing is learned from it yet."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_rollout_end(self, trainer_state):  # type: ignore[no-untyped-def]  # receives what it names
        if trainer_state.epoch == self.epoch:
            raise RuntimeError("somebody tripped over a cable")


def script(folder: Path, *hooks: TrainerHook) -> str:
    """What one would write anyway: a trainer with a folder, and one call. Returns the run's digest."""
    settings = {
        "num_envs": 8,
        "n_steps": 32,
        "n_epochs": 2,
        "core": "lstm",
        "lr_schedule": "linear",
        "checkpoint_interval": 2,
    }
    digests = DigestHook(folder.with_suffix(".jsonl"))
    with PPOTrainer(None, "CartPole-v1", checkpoint_dir=folder, **settings) as trainer:
        print(f"  begins at epoch {trainer.state.epoch}")
        trainer.train(steps, hooks=[digests, *hooks])
        return trainer.digest()


with tempfile.TemporaryDirectory() as name:
    whole, broken = Path(name) / "whole", Path(name) / "broken"
    print("left alone:")
    expected = script(whole)

    print("interrupted:")
    try:
        script(broken, Failure(epoch=steps // STEPS_PER_EPOCH // 2 + 1))
    except HookError as error:
        print(f"  {error}")

    print("run again:")  # the same call, and nothing else
    found = script(broken)

    print(f"digest of the run that was left alone: {expected[:16]}")
    print(f"digest of the interrupted run:         {found[:16]}")
    assert found == expected

    # every component after every epoch: weights, optimizer, recurrent state, environments, trackers
    by_epoch = [read_digests(folder.with_suffix(".jsonl")) for folder in (whole, broken)]
    assert compare_digests(*by_epoch) is None
    assert sorted(by_epoch[0]) == sorted(by_epoch[1])
    print(f"equal, to the bit, after each of {len(by_epoch[0])} epochs")
