"""Worlds of mettagrid: tokens as grids, everything from the seed, and all of it again after a restore."""

import importlib.util
import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metta.envs import make_vec_env
from metta.envs.agents.agents_vec_env import AgentsVecEnv
from metta.envs.agents.mettagrid_env import WORLDS, MettaGridEnv, TokenGrid, arena_small
from metta.envs.env_ids import check_env_id
from metta.errors import EnvError, MissingExtraError
from metta.rl.ppo_trainer import PPOTrainer
from metta.state_tree import pack_state, unpack_state
from metta.stateful import digest_of

ARENA = "mettagrid:arena_small"
SMALL = {"num_agents": 3, "max_steps": 12, "size": 8, "num_altars": 8, "view": 5}

needs_mettagrid = pytest.mark.skipif(
    importlib.util.find_spec("mettagrid") is None,
    reason="needs mettagrid (extra mettagrid)",
)


class Ids:
    """What `TokenGrid` asks of mettagrid: two features of cells, a tag, two of the agent."""

    def features(self) -> list[Any]:
        scales = {
            "agent_id": 255,
            "tag": 10,
            "inv:heart": 4,
            "last_action": 10,
            "lp:east": 5,
            "vibe": 2,
        }
        return [
            SimpleNamespace(id=index, name=name, normalization=scale)
            for index, (name, scale) in enumerate(scales.items())
        ]

    def tag_names(self) -> list[str]:
        return ["type:agent", "type:wall"]


def test_tokens_become_planes_and_entries_when_they_are_read() -> None:
    tokens = TokenGrid(SimpleNamespace(id_map=Ids, obs=SimpleNamespace(height=3, width=4)))
    assert tokens.planes == ["inv:heart", "vibe", "type:agent", "type:wall"]
    assert tokens.names == ["last_action", "lp:east"]
    none = [0xFF, 0xFF, 0xFF]
    raw = np.array(
        [
            # place (row, column as half bytes), feature, value
            [[0x12, 2, 2], [0x12, 1, 0], [0x03, 1, 1], [0xFE, 3, 5], [0x12, 0, 9], none],
            # of unknown tags, from outside the view, and a feature of cells without a cell: left out
            [[0x00, 1, 7], [0x30, 2, 1], [0xFE, 2, 1], [0x21, 5, 1], [0xFE, 4, 5], none],
        ],
        np.uint8,
    )
    grid, own = tokens.read(raw)
    assert (grid.shape, grid.dtype, own.dtype) == ((2, 4, 3, 4), np.float32, np.float32)
    found = {tuple(map(int, at)): float(grid[tuple(at)]) for at in np.argwhere(grid)}
    assert found == {(0, 0, 1, 2): 0.5, (0, 2, 1, 2): 1.0, (0, 3, 0, 3): 1.0, (1, 1, 2, 1): 0.5}
    assert own.tolist() == [[0.5, 0.0], [0.0, 1.0]]
    assert tokens.space["grid"].shape == (4, 3, 4)


def test_the_error_names_the_extra_when_mettagrid_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for ask in (check_env_id, make_vec_env):
        with pytest.raises(MissingExtraError, match=r"metta-rl\[mettagrid\]"):
            ask(ARENA)


def opened(**options: Any) -> Any:
    return make_vec_env(ARENA, num_envs=2, env_kwargs=SMALL, **options)


def played(vec_env: Any, obs: Any, steps: range) -> list[str]:
    told = []
    size = vec_env.num_rows // vec_env.num_groups
    for step in steps:
        for group in range(vec_env.num_groups):
            rows = slice(group * size, (group + 1) * size)
            vec_env.send(group, (np.arange(size) * 3 + step) % 5)
            result = vec_env.recv(group, {key: leaf[rows] for key, leaf in obs.items()})
            final = None if result.final is None else [result.final.rows, dict(result.final.obs)]
            flags = [result.valid, result.terminated, result.truncated, result.starts]
            told.append(digest_of([obs, result.rewards, flags, final, str(result.infos)]))
    return told


@needs_mettagrid
def test_rows_are_agents_and_limits_cut_when_an_arena_is_played() -> None:
    with closing(opened()) as env:
        assert isinstance(env, AgentsVecEnv)
        assert (env.num_rows, env.agents_per_env, env.mask_size) == (6, 3, 0)
        shapes = {leaf.key: (leaf.shape, leaf.dtype) for leaf in env.obs_spec.leaves}
        assert shapes["grid"] == ((11, 5, 5), np.float32)
        assert shapes["self"] == ((8,), np.float32)
        obs = env.obs_spec.zeros(6)
        env.reset(range(6), obs)
        planes = MettaGridEnv(arena_small(**SMALL))._tokens.planes
        # an agent stands in the middle of what it sees, and there are walls around
        assert (obs["grid"][:, planes.index("type:agent"), 2, 2] == 1).all()
        assert obs["grid"][:, planes.index("type:wall")].sum() > 0
        earned = np.zeros(6)
        generator = np.random.default_rng(0)
        for step in range(1, 13):
            env.send(0, generator.integers(5, size=6))
            result = env.recv(0, obs)
            earned += result.rewards
            assert result.valid.all()
            assert result.starts.all() == (step == 12)
        assert result.truncated.all()
        assert not result.terminated.any()
        assert result.final is not None
        numbers = dict(result.infos)
        assert sorted(numbers) == list(range(6))
        assert [numbers[row]["heart.gained"] for row in range(6)] == earned.tolist()
        assert {"laser.lost", "action.move.success"} <= numbers[0].keys()
        assert earned.sum() > 0


@needs_mettagrid
def test_steps_follow_from_the_seed_when_worlds_are_made_again() -> None:
    told = []
    for seed in (1, 1, 2):
        with closing(opened()) as env:
            obs = env.obs_spec.zeros(6)
            env.reset([seed] * 6, obs)
            told.append(played(env, obs, range(30)))
    assert told[0] == told[1]
    assert told[0] != told[2]


@needs_mettagrid
def test_every_episode_has_its_own_map_when_no_seed_is_given() -> None:
    env = MettaGridEnv(arena_small(**SMALL))
    maps = [digest_of(env.reset()[0]["agent_0"]["grid"]) for _ in range(3)]
    env.close()
    env.close()
    assert len(set(maps)) == 3
    assert str(env) == "<mettagrid arena_small>"
    assert env.render() is None


@needs_mettagrid
@pytest.mark.parametrize("num_workers", [0, 1])
def test_steps_are_equal_when_another_one_repeats_the_episodes(num_workers: int) -> None:
    with closing(opened(num_workers=num_workers)) as one, closing(opened()) as other:
        promise = one.prepare_restore()
        assert promise.restore_class == "repeat"
        other.prepare_restore()
        obs = one.obs_spec.zeros(6)
        one.reset(range(6), obs)
        played(one, obs, range(17))
        tree, tensors = pack_state(one.state_dict())
        seen = other.load_state_dict(unpack_state(json.loads(json.dumps(tree)), tensors))
        assert digest_of(dict(seen)) == digest_of(obs)
        again = {key: leaf.copy() for key, leaf in obs.items()}
        assert played(other, again, range(17, 40)) == played(one, obs, range(17, 40))


@needs_mettagrid
def test_agents_train_and_their_numbers_are_told_when_an_arena_is_named(tmp_path: Any) -> None:
    def trainer() -> PPOTrainer:
        return PPOTrainer(
            None,
            ARENA,
            env_kwargs={**SMALL, "agent_groups": [2, 1]},
            num_envs=4,
            horizon=24,
            minibatch_size=96,
            hidden_size=16,
            agent_name="mlp",
            checkpoint_dir=tmp_path,
            checkpoint_interval=3,
        )

    with trainer() as one:
        one.train(total_timesteps=3 * 288)
        found = one.digest()
        told, _ = one.collector.collect()
    assert told["env/heart.gained"] == told["episode_return"]
    assert len(told["env/heart.gained"]) == 24
    with trainer() as other:  # takes up the last checkpoint
        assert other.state.epoch == 3
        assert other.digest() == found
        again, _ = other.collector.collect()
    assert again == told


@needs_mettagrid
def test_worlds_of_ones_own_are_made_when_they_have_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WORLDS, "mine", lambda: arena_small(**{**SMALL, "num_agents": 2}))
    with closing(make_vec_env("mettagrid:mine")) as env:
        assert env.num_rows == 2
    with closing(make_vec_env("mettagrid:make_navigation", env_kwargs={"num_agents": 3})) as env:
        assert env.num_rows == 3
    monkeypatch.setitem(WORLDS, "none", dict)
    with pytest.raises(EnvError, match="needs a MettaGridConfig"):
        make_vec_env("mettagrid:none")


@needs_mettagrid
@pytest.mark.parametrize("name", ["arena_smal", "subprocess.getoutput", "builtins.dict", "os", ""])
def test_no_function_is_called_when_it_is_just_any(name: str) -> None:
    with pytest.raises(EnvError, match=r"there is no world mettagrid:.*mettagrid:arena_small"):
        make_vec_env(f"mettagrid:{name}", env_kwargs={"cmd": "exit 1"})
