"""Training jobs that take a moment, and what is left of their runs."""

from pathlib import Path
from typing import Any

from metta.cli.main import main
from metta.jobs.job import JobSpec
from metta.store.policies.file import read_policy_manifest
from metta.train.layers import resolve
from metta.train.parsing.values import plain_data
from metta.train.settings import given_paths, setting_values

TINY = ["num_envs=2", "horizon=16", "hidden_size=8", "update_epochs=1", "num_minibatches=1",
        "monitor_seconds=0", "verbose=false", "eval_episodes=3", "final_replay=false"]  # fmt: skip
LONG = ["total_timesteps=2_000_000", "checkpoint_interval=5"]


def training(run: str, *words: str, env: str = "CartPole-v1", **given: Any) -> JobSpec:
    """A job that trains what ``metta train CartPole-v1 WORDS`` does."""
    resolved = resolve(env, [], [*TINY, "total_timesteps=128", *words], check_sizes=False)
    values = setting_values(resolved.config)
    settings = {path: plain_data(values[path], path) for path in given_paths(resolved.config)}
    payload = {"run": run, "settings": settings, "provenance": resolved.provenance()}
    about = {"kind": "train", "group": "g", "key": run, "payload": payload}
    return JobSpec(**{**about, **given})


def trained(folder: Path, run: str, *words: str) -> Path:
    """The folder of a run that `metta train` made with the same settings."""
    arguments = ["CartPole-v1", *TINY, "total_timesteps=128", *words, "--run", run]
    assert main(["train", *arguments, "--runs", str(folder)]) == 0
    return folder / run


def weights_of(run: Path) -> str:
    """Digest of the last policy of a run."""
    newest = max((run / "checkpoints").glob("epoch_*"))
    return str(read_policy_manifest(newest / "policy.safetensors")["policy_hash"])
