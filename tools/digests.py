"""Parameter digests of small runs of every kind, to compare two checkouts on one machine.

    python -m tools.digests --out before.json      # in the old checkout
    python -m tools.digests --compare before.json  # in the new one; exit code 1 if any digest differs

A refactor keeps them all. Digests differ between machines, so none is ever stored in the repository.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn

from metta import PPOTrainer, Trainer
from metta.curriculum import Curriculum
from metta.envs.toy import MaskedCorridorEnv
from metta.rl.functional_trainer import functional_training_loop
from metta.rl.trainer import train
from metta.train import TrainingConfig, apply_settings

gymnasium.register("MaskedCorridor-v0", entry_point=MaskedCorridorEnv, disable_env_checker=True)

SMALL = {
    "total_timesteps": 256,
    "num_envs": 4,
    "horizon": 16,
    "update_epochs": 2,
    "num_minibatches": 2,
    "hidden_size": 8,
    "learning_rate": 1e-2,
    "verbose": False,
    "eval_episodes": 0,
}
CARTS = {"env": "metta/cartpole", "env_kwargs": {"max_episode_steps": 30}}
MASKED = "tools.digests:MaskedCorridor-v0"
TASKS = {"short": {"max_episode_steps": 9}, "long": {"max_episode_steps": 40}}
CROWD = {"env": "grid/crowd", "env_kwargs": {"horizon": 24, "num_agents": 4}}

CASES: dict[str, dict[str, Any]] = {
    "mlp": {"env": "CartPole-v1", "lr_schedule": "linear"},
    "mlp, normalised": {
        "env": "Acrobot-v1",
        "normalize_observations": True,
        "normalize_returns": True,
    },
    "kl stop": {"env": "CartPole-v1", "lr_schedule": "adaptive_kl", "target_kl": 0.001},
    "v-trace": {"env": "CartPole-v1", "advantage_estimator": "vtrace"},
    "lstm": {"env": "CartPole-v1", "core": "lstm", "bptt_horizon": 4},
    "gru, normalised": {"env": "CartPole-v1", "core": "gru", "normalize_observations": True},
    "cnn": {"env": "grid/gather", "env_kwargs": {"horizon": 24}},
    "box": {"env": "Pendulum-v1", "normalize_returns": True},
    "masks": {"env": MASKED},
    "masks, lstm": {"env": MASKED, "core": "lstm"},
    "workers": {"env": "CartPole-v1", "num_workers": 2},
    "workers, groups, lstm": {
        "env": "CartPole-v1",
        "num_workers": 2,
        "num_groups": 2,
        "core": "lstm",
    },
    "curriculum": {"env": "CartPole-v1", "curriculum.kind": "learning_progress", "tasks": TASKS},
    "agent groups": {
        "env": "grid/crowd",
        "env_kwargs": {"horizon": 24, "num_agents": 4, "agent_groups": [1, 3]},
        "core": "gru",
    },
    "self-play": {**CROWD, "learner_share": 0.5, "self_play_interval": 2, "pool_size": 2},
    "native": CARTS,
    "native, groups": {**CARTS, "normalize_observations": True, "num_groups": 2},
    "eager actor": {"env": "CartPole-v1", "actor": "eager"},
    "traced actor": {"env": "CartPole-v1", "actor": "traced"},
    "gradient accumulation": {"env": "CartPole-v1", "gradient_accumulation": 2},
    "compiled": {"env": "CartPole-v1", "driver": "step"},
}


def hash_of(policy: nn.Module) -> str:
    """SHA-256 over all parameters and buffers in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(name.encode() + str(tensor.dtype).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def config_of(case: str) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**SMALL, **CASES[case]})


def phases(case: str, _folder: Path) -> nn.Module:
    config = config_of(case)
    with PPOTrainer(None, config.env, config=config) as trainer:
        trainer.train()
        return trainer.policy


class OwnPhases(PPOTrainer):
    def collect_rollouts(self, n_steps: int | None = None) -> dict[str, torch.Tensor]:
        data = super().collect_rollouts(n_steps)
        data["returns"] = data["returns"] * 0.5
        return data

    def learn(self, rollout_data: Any) -> dict[str, float]:
        return super().learn(rollout_data)


def own_phases(case: str, _folder: Path) -> nn.Module:
    config = config_of(case)
    with OwnPhases(None, config.env, config=config) as trainer:
        trainer.train()
        return trainer.policy


def by_hand(case: str, _folder: Path) -> nn.Module:
    config = config_of(case)
    with PPOTrainer(None, config.env, config=config) as trainer:
        for _ in range(3):
            trainer.learn(trainer.collect_rollouts())
        return trainer.policy


def run(case: str, folder: Path) -> nn.Module:
    with Trainer(config_of(case), run_dir=folder / "run") as trainer:
        trainer.train()
        return trainer.policy


def resumed_run(case: str, folder: Path) -> nn.Module:
    half = apply_settings(config_of(case), {"total_timesteps": 128, "checkpoint_interval": 1})
    train(folder / "run", half)
    whole = apply_settings(config_of(case), {"checkpoint_interval": 1})
    with Trainer(whole, run_dir=folder / "run") as trainer:
        trainer.train()
        return trainer.policy


def functional(case: str, _folder: Path) -> nn.Module:
    config = config_of(case)
    with PPOTrainer(None, config.env, config=config) as maker:
        policy = maker.policy
    curriculum = Curriculum(config.trainer.curriculum)
    functional_training_loop(config.trainer, config.trainer.ppo, policy, curriculum, None)
    return policy


INTERFACES: dict[str, Callable[[str, Path], nn.Module]] = {
    "overridden phases": own_phases,
    "phases by hand": by_hand,
    "run": run,
    "resumed run": resumed_run,
    "functional loop": functional,
}


def digests() -> dict[str, str]:
    """Every case by `PPOTrainer.train`, and three of them by every other interface."""
    jobs = [(case, "PPOTrainer", phases) for case in CASES if case != "curriculum"]
    jobs += [("curriculum", "run", run)]  # an environment that is given plays no tasks
    jobs += [
        (case, name, way) for case in ("mlp", "lstm", "native") for name, way in INTERFACES.items()
    ]
    found = {}
    for case, name, way in jobs:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{case} / {name}"] = hash_of(way(case, Path(folder)))
        print(f"{found[f'{case} / {name}'][:12]}  {case} / {name}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the digests here")
    parser.add_argument("--compare", type=Path, help="digests of another checkout")
    options = parser.parse_args()
    found = digests()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if not options.compare:
        return 0
    expected = json.loads(options.compare.read_text())
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    print(f"{len(found)} digests, {len(differing)} differ: {differing}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
