"""Sound policies, rollouts and checkpoints, and what there is to read in them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import CorridorEnv
from metta.rollout import Rollout
from metta.state_tree import copy_state
from metta.stateful import digest_of
from metta.store.checkpoints.files import read_checkpoint, write_checkpoint
from metta.store.policies.file import load_weights, save_policy
from metta.store.policy_store import PolicyStore
from metta.store.rollout_file import load_rollout, save_rollout
from metta.train.train_config import AgentConfig

AGENTS = {
    "mlp": AgentConfig(hidden_size=8),
    "lstm": AgentConfig(hidden_size=8, core="lstm"),
    "normalised": AgentConfig(hidden_size=8, normalize_observations=True, normalize_returns=True),
}
_ENV = CorridorEnv()


def policy_of(agent: str, seed: int = 0) -> Policy:
    spaces = _ENV.observation_space, _ENV.action_space
    return make_policy(*spaces, AGENTS[agent], seed=seed)


def metadata_of(agent: str) -> dict[str, Any]:
    return {
        "name": "corridor", "epoch": 7, "agent_step": 700, "score": 1.5,
        "agent": dataclasses.asdict(AGENTS[agent]),
    }  # fmt: skip


def make_policy_file(folder: Path, agent: str, seed: int = 1) -> Path:
    return save_policy(folder / "policy.safetensors", policy_of(agent, seed), metadata_of(agent))


def make_rollout_file(folder: Path, agent: str, seed: int = 1) -> Path:
    draws = torch.Generator().manual_seed(seed)
    columns = {
        "observations": torch.randn(9, 4, 8, generator=draws),
        "actions": torch.randint(0, 2, (9, 4), generator=draws),
        "rewards": torch.randn(9, 4, generator=draws),
        "valid": torch.rand(9, 4, generator=draws) < 0.9,
        "pixels": torch.randint(0, 255, (9, 4, 3), generator=draws, dtype=torch.uint8),
    }
    source = {"env_id": "CorridorEnv", "seed": seed, "agent": agent, "versions": {"metta": "1"}}
    return save_rollout(folder / "rollout.safetensors", Rollout(columns, source))


def make_checkpoint(folder: Path, agent: str, seed: int = 1) -> Path:
    policy = policy_of(agent, seed)
    optimizer = torch.optim.Adam(policy.parameters())
    sum(parameter.square().sum() for parameter in policy.parameters()).backward()
    optimizer.step()
    rows = np.random.default_rng(seed)
    snapshot = {
        "policy": {"version": 1, "state": copy_state(policy.state_dict())},
        "optimizer": {"version": 1, "state": copy_state(optimizer.state_dict())},
        "environments": {
            "version": 2,
            "state": {
                "rows": [{"at": row, "generator": rows.bit_generator.state} for row in range(4)],
                "observations": rows.normal(size=(4, 8)),
                "flags": np.array([True, False, True, True]),
                "pair": (1, float("-inf")),
            },
        },
    }
    return write_checkpoint(folder, snapshot, policy, metadata_of(agent))


MAKERS: dict[str, Callable[..., Path]] = {
    "policy": make_policy_file,
    "rollout": make_rollout_file,
    "checkpoint": make_checkpoint,
}


@dataclasses.dataclass(frozen=True)
class Reader:
    """A way to read a kind of file: a digest of all it gives, and which files of a folder it looks at."""

    read: Callable[[Path, str], str]
    files: frozenset[str]


def _policy(path: Path, agent: str) -> str:
    policy = policy_of(agent)
    metadata = load_weights(path, policy)
    return digest_of([policy.parameter_hash(), metadata])


def _stored(path: Path, _agent: str) -> str:
    record = PolicyStore(path.parent).load(path, CorridorEnv)
    assert record.policy is not None
    return digest_of([record.policy.parameter_hash(), record.metadata, record.epoch, record.name])


def _rollout(path: Path, _agent: str) -> str:
    rollout = load_rollout(path)
    return digest_of([dict(rollout), rollout.manifest])


def _checkpoint(path: Path, _agent: str) -> str:
    found = read_checkpoint(path)
    return digest_of([found.snapshot, found.epoch, found.agent_step, found.metadata])


_POLICY, _ROLLOUT = frozenset({"policy.safetensors"}), frozenset({"rollout.safetensors"})
_MANIFEST, _STATE = frozenset({"manifest.json"}), frozenset({"state.safetensors", "state.json"})
READERS: dict[str, dict[str, Reader]] = {
    "policy": {
        "load_weights": Reader(_policy, _POLICY),
        "PolicyStore.load": Reader(_stored, _POLICY),
    },
    "rollout": {"load_rollout": Reader(_rollout, _ROLLOUT)},
    "checkpoint": {
        "read_checkpoint": Reader(_checkpoint, _MANIFEST | _STATE | _POLICY),
        "PolicyStore.load": Reader(_stored, _MANIFEST | _POLICY),
    },
}
