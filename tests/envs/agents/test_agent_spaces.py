"""Agents with different spaces: padded rows, one network for each group of equal agents."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.envs.agents.agent_groups import GroupedVecEnv
from metta.envs.env_ids import check_env_id
from metta.errors import EnvError
from tests.envs.tasks_and_agents import Party

NEEDS_MPE2 = "needs mpe2 (extra pettingzoo)"


class Mixed(Party):
    """`late`, in the middle, has four actions from 2 on and sees one number more than the others."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (4 if agent == "late" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4, start=2) if agent == "late" else spaces.Discrete(3)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert all(self.action_space(name).contains(taken) for name, taken in actions.items())
        return super().step(actions)

    def _see(self, name: str, action: int) -> Any:
        seen = super()._see(name, action)
        return np.append(seen, 7.0).astype(np.float32) if name == "late" else seen


def test_equal_agents_are_neighbours_and_padded_when_spaces_differ() -> None:
    with closing(make_vec_env(Mixed, num_envs=2)) as envs:
        assert isinstance(envs, GroupedVecEnv)
        assert envs.sizes == (2, 1)
        assert envs.agents == ["early", "cut", "late"]
        assert envs.action_space == spaces.Discrete(4)
        obs = envs.obs_spec.zeros(6)
        masks = envs.reset([1] * 6, obs).action_mask
        assert masks is not None
        assert obs["agent_group"].tolist() == [0, 0, 1] * 2
        assert obs["obs"][:2, -1].tolist() == [0, 0]
        for _ in range(3):
            envs.send(0, np.array([2, 2, 3] * 2))
            result = envs.recv(0, obs)
        # `late` has joined: its fourth action is its own number 5, of a reward of 10 * 1 + 5
        assert result.valid.tolist() == [False, True, True] * 2
        assert result.rewards.tolist() == [0, 22, 15] * 2
        assert result.action_mask is not None
        assert result.action_mask[1:3].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
        assert obs["obs"][2].tolist() == [2, 3, 5, 7]


@pytest.mark.parametrize(
    ("name", "kwargs", "sizes"),
    [
        ("simple_speaker_listener_v4", {}, (1, 1)),
        ("simple_tag_v3", {}, (3, 1)),
        ("simple_world_comm_v3", {"continuous_actions": True}, (1, 3, 2)),
    ],
)
def test_a_run_goes_on_equal_to_the_bit_when_agents_are_of_several_kinds(
    name: str, kwargs: dict[str, Any], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    pytest.importorskip("mpe2", reason=NEEDS_MPE2)

    def trainer() -> PPOTrainer:
        settings: Any = {"num_envs": 2, "horizon": 16, "hidden_size": 8, "num_minibatches": 1}
        return PPOTrainer(None, f"pettingzoo:mpe2.{name}", env_kwargs=kwargs, **settings)

    def digests(of: PPOTrainer) -> dict[str, str]:
        left_out = ("policy_tracker", "conditions")
        return {k: v for k, v in of.registry.digests().items() if k not in left_out}

    steps = 2 * 2 * 16 * sum(sizes)
    with trainer() as whole:
        assert whole.env.sizes == sizes  # type: ignore[attr-defined]
        assert len(whole.policy.module.members) == len(sizes)  # type: ignore[arg-type]
        whole.train(steps)
        whole.save(tmp_path / "half")
        whole.train(steps)
        wanted = digests(whole)
    with trainer() as resumed:
        resumed.load(tmp_path / "half")
        resumed.train(steps)
        assert digests(resumed) == wanted


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_environments_of_turns_are_converted_when_their_package_allows_it() -> None:
    rps = pytest.importorskip("pettingzoo.classic.rps_v2", reason="needs pettingzoo")
    with closing(make_vec_env(rps.env, num_envs=2)) as envs:
        assert envs.num_rows == 4
    with pytest.raises(EnvError, match="AEC interface: its agents act in turn"):
        check_env_id("pettingzoo:pettingzoo.classic.tictactoe_v3")
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="needs pettingzoo")
    with pytest.raises(EnvError, match="AEC interface: its agents act in turn"):
        make_vec_env(tictactoe.env)
