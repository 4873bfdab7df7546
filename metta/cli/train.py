"""`metta train`: a run from start to saved result."""

import csv
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metta.cli.plot import draw_learning_curve
from metta.cli.progress import Progress
from metta.envs.factory import make_vec_env
from metta.errors import MissingExtraError
from metta.files import atomic_write
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_state import TrainerState
from metta.sim.simulation import run_episodes
from metta.store.policy_file import save_policy
from metta.train.presets import preset_for
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = ["train"]

_INTERRUPTED = 130
_MAX_EVAL_ENVS = 8


def train(*, env: str, settings: Mapping[str, Any], output: Path, eval_episodes: int) -> int:
    """Train, score, save, draw; Ctrl-C stops training and still saves what was learned."""
    config = apply_settings(preset_for(env), dict(settings))
    with PPOTrainer(None, config.env, config=config) as trainer:
        print(f"training {config.env} for {config.trainer.total_timesteps:,} steps "
              f"(seed {config.trainer.seed}; {trainer.plan.describe()})")  # fmt: skip
        rows: list[dict[str, float]] = []
        status = 0
        with Progress(config.trainer.total_timesteps) as progress:

            def on_epoch_end(state: TrainerState, metrics: dict[str, float]) -> None:
                rows.append(metrics)
                progress.update(state.agent_step, metrics)

            try:
                trainer.train(on_epoch_end=on_epoch_end)
            except KeyboardInterrupt:
                status = _INTERRUPTED
        if status:
            print(f"interrupted at {trainer.state.agent_step:,} steps; saving what was learned")
        score = _score(trainer, config, 0 if status else eval_episodes)
        _save(_new_run_dir(output, config), trainer, rows, score)
    return status


def _score(trainer: PPOTrainer, config: TrainingConfig, episodes: int) -> float:
    """Mean return of fresh episodes of the final policy; NaN where none were asked for."""
    if episodes < 1:
        return float("nan")
    envs = make_vec_env(config.env, num_envs=min(_MAX_EVAL_ENVS, episodes))
    try:
        scores = run_episodes(trainer.policy, envs, episodes, seed=config.trainer.seed + 1_000_000)
    finally:
        envs.close()
    spread = float(scores.returns.std())
    print(f"reached a mean return of {scores.mean:.1f} (std {spread:.1f}) over {episodes} fresh episodes "
          f"after {trainer.state.agent_step:,} steps")  # fmt: skip
    return scores.mean


def _new_run_dir(output: Path, config: TrainingConfig) -> Path:
    """A folder that no other run has, also when two end in the same second."""
    stem = f"{config.experiment_name}-seed{config.trainer.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    output.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        run_dir = output / (stem if number == 1 else f"{stem}-{number}")
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        break
    return run_dir


def _save(
    run_dir: Path, trainer: PPOTrainer, rows: Sequence[Mapping[str, float]], score: float
) -> None:
    metadata = {
        "env": trainer.config.env,
        "agent_step": trainer.state.agent_step,
        "score": None if math.isnan(score) else score,
        "config": dataclasses.asdict(trainer.config),
    }
    policy = save_policy(run_dir / "policy.safetensors", trainer.policy, metadata)
    config = json.dumps(metadata["config"], indent=2)
    atomic_write(run_dir / "config.json", lambda path: _write_text(path, config))
    atomic_write(run_dir / "metrics.csv", lambda path: _write_csv(path, rows))
    print(f"saved policy to {policy}, metrics to {run_dir / 'metrics.csv'}")
    try:
        curve = draw_learning_curve(run_dir / "learning_curve.png", rows, trainer.config.env)
        print(f"drew the learning curve to {curve}")
    except MissingExtraError as error:
        print(f"no learning curve: {error}")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
