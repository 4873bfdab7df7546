"""A killed run resumes to the same bits though objects of its environment appear late in an episode."""

import time
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from metta.stateful import digest_of
from metta.store.checkpoints.files import checkpoint_folders, read_checkpoint

CARRIER = """
import gymnasium
import numpy as np


class Ball:
    def __init__(self, owner):
        self.owner = owner
        self.weight = float(owner.np_random.random())


class Carrier(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.carrying, self.now, self.place = None, 0, 0.0
        return self._see(), {}

    def step(self, action):
        self.now += 1
        self.place += (1 if action else -1) * self.np_random.random()
        if self.now == 30:
            self.carrying = Ball(self)
        return self._see(), -abs(self.place), False, self.now >= 10_000, {}

    def _see(self):
        weight = 0.0 if self.carrying is None else self.carrying.weight
        return np.array([self.now / 10_000, self.place, weight], np.float32)


gymnasium.register("Carrier-v0", Carrier)
"""
BATCH = 2 * 35
WORDS = ["carrier_world:Carrier-v0", "num_envs=2", "horizon=35", f"minibatch_size={BATCH}",
         "hidden_size=8", "update_epochs=1", "checkpoint_interval=1", "eval_episodes=0",
         "final_replay=false",
         "monitor_seconds=0", "verbose=false", "recipe=none"]  # fmt: skip


def components_of(run: Path) -> tuple[int, dict[str, str]]:
    """The epoch of the newest checkpoint, and a digest of each component that decides numbers."""
    checkpoint = read_checkpoint(max(checkpoint_folders(run / "checkpoints")))
    names = ("policy", "optimizer", "collector", "environments")
    return checkpoint.epoch, {name: digest_of(checkpoint.snapshot[name]) for name in names}


def run_in(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


def train_and_kill(zygote: Zygote, folder: Path) -> Path:
    words = ["train", *WORDS, "total_timesteps=1_000_000", "--output", str(folder)]
    child = zygote.start(
        "tests.children:metta_with_modules", words=words, folder=str(folder.parent)
    )
    deadline = time.monotonic() + 60.0
    while len([*folder.glob("*/checkpoints/epoch_*")]) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    assert child.wait() == -9
    return run_in(folder)


def test_a_killed_run_equals_a_whole_one_when_objects_appear_late_and_hold_their_environment(
    zygote: Zygote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "carrier_world.py").write_text(CARRIER)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    killed = train_and_kill(zygote, tmp_path / "killed")
    total = f"total_timesteps={(components_of(killed)[0] + 2) * BATCH}"
    assert main(["resume", str(killed), total]) == 0
    assert main(["train", *WORDS, total, "--output", str(tmp_path / "whole")]) == 0
    assert "class repeat: a resumed run is equal to the bit" in capsys.readouterr().out
    assert components_of(killed) == components_of(run_in(tmp_path / "whole"))
