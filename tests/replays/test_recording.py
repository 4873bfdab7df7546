"""Recording: an episode is kept as it was played, to its last state, and nothing else is touched."""

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv, NestedEnv
from metta.errors import EnvError, PolicyError, UnsafeFileError
from metta.replays import recording
from metta.replays.recording import record_episode
from metta.replays.replay import Replay
from metta.sim import run_episodes
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig
from tests.sim.team_envs import Team

LAKE = Task("FrozenLake-v1", {"render_mode": "ansi", "is_slippery": False})


def policy_for(task: Any) -> Policy:
    envs = make_vec_env(task)
    envs.close()
    config = AgentConfig(hidden_size=8)
    return make_policy(envs.observation_space, envs.action_space, config, seed=3)


def actions_of(replay: Replay) -> list[Any]:
    return [replay.actions(step)[0].copy() for step in range(replay.info.num_steps)]


def test_frames_are_those_of_stepping_again_when_an_environment_draws_images() -> None:
    replay = record_episode(policy_for("CartPole-v1"), "CartPole-v1", seed=5)
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=replay.info.seed)
    frames, ends = [env.render()], []
    for action in actions_of(replay):
        ends.append(env.step(action)[2])
        frames.append(env.render())
    env.close()
    assert (replay.info.kind, replay.info.ended, replay.info.fps) == ("frames", "terminated", 50.0)
    assert ends == [False] * (replay.info.num_steps - 1) + [True]
    assert replay.num_moments == len(frames) > 5
    for moment, frame in enumerate(frames):
        assert np.array_equal(replay.frame(moment), frame)
    assert not np.array_equal(frames[-1], frames[0])


def test_texts_are_those_of_stepping_again_when_an_environment_draws_text() -> None:
    replay = record_episode(policy_for(LAKE), LAKE, seed=2)
    env = gymnasium.make("FrozenLake-v1", **LAKE.env_kwargs)
    env.reset(seed=replay.info.seed)
    texts = [env.render()]
    for action in actions_of(replay):
        env.step(action)
        texts.append(env.render())
    env.close()
    assert replay.info.kind == "text"
    assert [replay.text(moment) for moment in range(replay.num_moments)] == texts


def test_the_first_episode_of_an_evaluation_is_recorded_when_the_seed_is_its_own() -> None:
    for task in ("CartPole-v1", "grid/gather"):
        policy = policy_for(task)
        envs = make_vec_env(task, num_envs=4)
        scores = run_episodes(policy, envs, 4, seed=7)
        envs.close()
        info = record_episode(policy, task, seed=7).info
        assert info.num_steps == scores.lengths[0]
        assert scores.agents is not None
        assert info.returns == pytest.approx(scores.agents.returns[0].tolist())
        assert info.mean_return == pytest.approx(scores.returns[0])


class Growing(CorridorEnv):
    """Texts that become longer than the room that the first one needed."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  (as gymnasium has it)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.count = 0

    def reset(self, **options: Any) -> Any:
        self.count = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.count += 1
        return super().step(action)

    def render(self) -> str:
        return f"\x00ä{'x' * 100 * self.count}"


def test_texts_come_back_when_they_grow() -> None:
    replay = record_episode(policy_for(Growing), Growing, max_steps=12)
    assert (replay.info.kind, replay.info.ended) == ("text", "cut")
    assert [replay.text(moment) for moment in range(13)] == [f"ä{'x' * 100 * k}" for k in range(13)]


class Silent(CorridorEnv):
    """Says that it draws, and does not."""

    metadata = {"render_modes": ["rgb_array", "ansi"]}  # noqa: RUF012  (as gymnasium has it)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        if render_mode == "rgb_array":
            raise RuntimeError("no display")
        self.render_mode = render_mode

    def render(self) -> Any:
        return None


class Stubborn(CorridorEnv):
    """Names a way to draw and does not take it as an argument."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (as gymnasium has it)


@pytest.mark.parametrize("env", [CorridorEnv, Silent, Stubborn])
def test_observations_are_kept_when_nothing_is_drawn(env: type[CorridorEnv]) -> None:
    replay = record_episode(policy_for(env), env, seed=4)
    again = env()
    seen = [again.reset(seed=replay.info.seed)[0]]
    seen += [again.step(action)[0] for action in actions_of(replay)]
    assert (replay.info.kind, replay.leaves) == ("observations", ["obs"])
    assert replay.num_moments == len(seen)
    for moment, observation in enumerate(seen):
        assert np.array_equal(replay.observation("obs", moment)[0], observation)


def test_every_leaf_is_kept_when_observations_are_nested() -> None:
    replay = record_episode(policy_for(NestedEnv), NestedEnv, seed=4)
    envs = make_vec_env(NestedEnv)
    leaves = {leaf.key: (1, *leaf.shape) for leaf in envs.obs_spec.leaves}
    envs.close()
    assert {leaf: replay.observation(leaf, 0).shape for leaf in replay.leaves} == leaves


def test_every_agent_is_kept_when_an_environment_has_many() -> None:
    replay = record_episode(
        policy_for(Task(Team, {"lengths": (9,)})), Task(Team, {"lengths": (9,)})
    )
    info = replay.info
    assert (info.kind, info.num_agents, info.num_steps) == ("observations", 3, 9)
    assert replay.observation("obs", 9).shape == (3, 1)
    assert [replay.valid(step).tolist() for step in (0, 1, 8)] == [
        [True, True, True],
        [True, True, False],
        [True, True, False],
    ]
    totals = sum(replay.rewards(step).astype(float) for step in range(9))
    assert info.returns == pytest.approx(totals.tolist())
    done = [replay.actions(step)[1] for step in range(9)]
    assert info.returns[1] == 11 * sum(done)


@pytest.mark.parametrize(
    "task",
    [
        Task("grid/gather", {"horizon": 4, "agent_groups": [1, 3]}),
        Task(Team, {"lengths": (4,), "agent_groups": [2, 1]}),
    ],
    ids=["grid", "team"],
)
def test_groups_of_agents_are_no_hindrance_when_they_learn_apart(task: Task) -> None:
    envs = make_vec_env(task, num_envs=2)
    policy = make_policy(envs.observation_space, envs.action_space, AgentConfig(hidden_size=8))
    scores = run_episodes(policy, envs, 2, seed=1)
    envs.close()
    info = record_episode(policy, task, seed=1).info
    assert info.num_steps == scores.lengths[0] == 4
    assert info.mean_return == pytest.approx(scores.returns[0])


def test_images_are_kept_when_a_parallel_environment_draws_them() -> None:
    task = Task("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 3})
    replay = record_episode(policy_for(task), task)
    assert (replay.info.kind, replay.info.num_agents, replay.info.ended) == (
        "frames",
        3,
        "truncated",
    )
    assert not np.array_equal(replay.frame(0).copy(), replay.frame(3))


def test_the_other_policys_agents_are_told_apart_when_two_play() -> None:
    policy = policy_for("grid/gather")
    replay = record_episode(
        policy, Task("grid/gather", {"horizon": 4}), npc_policy=policy, policy_agents_pct=0.5
    )
    assert replay.info.evaluated == (True, True, False, False)


def test_the_info_says_so_when_a_recording_is_cut() -> None:
    for task in ("CartPole-v1", "grid/gather", CorridorEnv):
        info = record_episode(policy_for(task), task, max_steps=3).info
        assert (info.num_steps, info.ended) == (3, "cut")


def test_what_it_is_of_is_known_when_it_is_recorded() -> None:
    task = Task("grid/rooms", {"horizon": 3})
    about = {"simulation": "a/b", "epoch": 4, "agent_step": 40, "policy_uri": "file:///p"}
    info = record_episode(policy_for(task), task, **about).info
    assert (info.env, info.env_id, info.env_kwargs) == ("grid/rooms", "grid/rooms", {"horizon": 3})
    assert {name: getattr(info, name) for name in about} == about
    own = record_episode(policy_for(CorridorEnv), Task(CorridorEnv, {}), max_steps=2).info
    assert (own.env, own.env_id, own.env_kwargs) == ("CorridorEnv", None, {})


class Drawing(CorridorEnv):
    """Uses the generators that everybody shares; draws another image in each step."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (as gymnasium has it)
    num_open = 0
    size = 4

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        Drawing.num_open += 1

    def render(self) -> Any:
        random.random()
        torch.rand(1)
        return np.random.randint(0, 255, (type(self).size, 4, 3), np.uint8)  # noqa: NPY002 (the shared one is meant)

    def close(self) -> None:
        Drawing.num_open -= 1


def generators() -> str:
    legacy = np.random.get_state()  # noqa: NPY002 (as above)
    return digest_of([torch.get_rng_state(), legacy[1], legacy[2], repr(random.getstate())])


def test_generators_and_environments_are_left_as_they_were_when_it_is_over() -> None:
    policy = policy_for(Drawing)
    opened, before = Drawing.num_open, generators()
    assert record_episode(policy, Drawing, max_steps=5).info.kind == "frames"
    assert (Drawing.num_open, generators()) == (opened, before)


class Resizing(Drawing):
    def step(self, action: Any) -> Any:
        Resizing.size = 5
        return super().step(action)


def test_it_is_refused_when_images_change_their_size() -> None:
    policy, opened = policy_for(CorridorEnv), Drawing.num_open
    with pytest.raises((EnvError, UnsafeFileError), match="must keep its shape"):
        record_episode(policy, Resizing)
    assert Drawing.num_open == opened


def test_it_is_refused_when_the_policy_does_not_fit() -> None:
    with pytest.raises(PolicyError, match=r"cannot play 'CartPole-v1'"):
        record_episode(policy_for(CorridorEnv), "CartPole-v1")


class Boxed(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), float(action.sum()), False, bool(abs(action[0]) > 1e-9), {}


def test_actions_are_those_of_the_environment_when_they_are_numbers() -> None:
    replay = record_episode(policy_for(Boxed), Boxed, seed=1)
    assert replay.actions(0).shape == (1, 3)
    assert replay.rewards(0)[0] == pytest.approx(replay.actions(0).sum())


class Noisy(Drawing):
    """Images that cannot be compressed: 48 kB each."""

    size = 4000


@pytest.mark.parametrize("task", [Noisy, Growing, CorridorEnv, "grid/gather"])
def test_a_recording_is_cut_when_it_has_too_many_bytes(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_for(task)
    whole = record_episode(policy, task, max_steps=60)
    size = sum(len(track.content) for track in whole.tracks.values())
    monkeypatch.setattr(recording, "_MAX_BYTES", size // 4 if task is Noisy else 1)
    cut = record_episode(policy, task, max_steps=60)
    assert cut.info.ended == "cut"
    assert 1 <= cut.info.num_steps < whole.info.num_steps
    if task is Noisy:
        kept = sum(len(track.content) for track in cut.tracks.values())
        assert size // 4 <= kept < size // 2
