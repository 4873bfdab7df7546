"""A policy's file is held open from finding to building."""

import shutil
from pathlib import Path

import pytest
import torch

from metta.agent.factory import make_policy
from metta.envs.toy import CorridorEnv
from metta.store.policy_store import PolicyStore, spaces_of
from metta.train.train_config import AgentConfig


def test_the_policy_is_built_when_its_file_was_removed_after_it_was_found(tmp_path: Path) -> None:
    policy = make_policy(*spaces_of(CorridorEnv), AgentConfig(hidden_size=8), seed=3)
    PolicyStore(tmp_path / "here").save(policy, "p", 1)
    with PolicyStore(tmp_path / "here").hold(tmp_path / "here") as held:
        shutil.rmtree(tmp_path / "here")
        built = held.load().policy
    assert built is not None
    for name, value in policy.state_dict().items():
        assert torch.equal(built.state_dict()[name], value)


def test_an_error_of_the_body_is_its_own_when_a_policy_is_held(tmp_path: Path) -> None:
    policy = make_policy(*spaces_of(CorridorEnv), AgentConfig(hidden_size=8), seed=3)
    record = PolicyStore(tmp_path).save(policy, "p", 1)
    with pytest.raises(OSError, match="of the body"), PolicyStore(tmp_path).hold(record.uri):
        raise OSError("of the body")
