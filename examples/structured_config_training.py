"""Typed configurations: presets, dicts, YAML, who set what; then a run in a folder of its own.

python examples/structured_config_training.py [--steps N]
"""

import argparse
import tempfile
from pathlib import Path

from metta.errors import ConfigError
from metta.rl.components import Trainer
from metta.store.policy_store import PolicyStore
from metta.train import resolve
from metta.train.settings import apply_settings
from metta.train.train_config import (
    AgentConfig,
    PPOConfig,
    TrainerConfig,
    TrainingConfig,
    small_fast_config,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=8_192, help="agent steps of the run")
steps = parser.parse_args().steps

# 1. a preset, or a configuration of your own: values are checked as soon as it is built
preset = small_fast_config()
custom = TrainingConfig(
    experiment_name="my_experiment",
    agent=AgentConfig(name="mlp", hidden_size=32),
    trainer=TrainerConfig(total_timesteps=steps, ppo=PPOConfig(clip_coef=0.1)),
)
print(f"preset {preset.experiment_name}: {preset.env}, {preset.trainer.total_timesteps:,} steps")
print(f"custom {custom.experiment_name}: clip {custom.trainer.ppo.clip_coef}")

# 2. a dict, nested or flat, in the spelling of other libraries too
legacy = TrainingConfig.from_dict(
    {"agent": {"name": "mlp"}, "trainer": {"total_timesteps": steps, "clip_range": 0.1}}
)
print(f"from a dict: clip {legacy.trainer.ppo.clip_coef}")

# 3. what is wrong is said at once, for all settings together
try:
    TrainingConfig.from_dict({"gamma": 1.5, "learning_rat": 1e-3})
except ConfigError as error:
    print(f"refused: {error}")

with tempfile.TemporaryDirectory() as folder:
    # 4. YAML: written whole, read with line numbers, laid over a preset, overridden by hand
    path = custom.to_yaml(Path(folder) / "mine.yaml")
    assert TrainingConfig.from_yaml(path) == custom
    resolved = resolve("small_fast", [path], {"learning_rate": 1e-3})
    print(resolved.explain("clip_range").replace(folder, "..."))

    # 5. a run: with a run directory it is logged, saved, evaluated, and can be resumed
    config = apply_settings(preset, {"total_timesteps": steps, "verbose": False})
    trainer = Trainer(config, run_dir=Path(folder) / "first")
    try:
        trainer.setup(vectorization="serial")
        print(trainer.describe_hooks())
        state = trainer.train()
    finally:
        trainer.cleanup()
    print(f"trained {state.agent_step:,} steps; score {state.eval_scores.avg_category_score:.1f}")
    print("the run holds", ", ".join(sorted(p.name for p in (Path(folder) / "first").iterdir())))

    # 6. later: find its policy by the name of the run
    record = PolicyStore(folder).load("first:latest", env=config.env)
    print(f"policy of epoch {record.epoch}, score {record.metadata['score']:.1f}")
