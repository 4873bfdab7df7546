"""Environments of many agents: whose returns count, and who plays whom."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from metta.agent.factory import make_policy
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.grid import TASKS, GridVecEnv
from metta.envs.rows.row_spec import episode_seed
from metta.errors import ConfigError
from metta.sim import EpisodeScores, run_episodes
from metta.sim.players import evaluated_agents
from tests.sim.team_envs import Team, always


def play(
    num_episodes: int, *, num_envs: int = 3, team: Any = Team, **options: Any
) -> EpisodeScores:
    policy = options.pop("policy", None) or always(1)
    num_groups = options.pop("num_groups", 1)
    with closing(make_vec_env(team, num_envs=num_envs, num_groups=num_groups)) as vec_env:
        return run_episodes(policy, vec_env, num_episodes, seed=4, **options)


def earliest_lengths(num_envs: int, num_episodes: int) -> list[int]:
    """Lengths of the first episodes by (time, environment) of their start, read off the team itself."""
    starts = []
    for env, seed in enumerate(row_seeds(4, 3 * num_envs)[::3]):
        time = 0
        for episode in range(num_episodes):
            team = Team()
            team.reset(seed=episode_seed(seed, episode))
            starts.append((time, env, team.length))
            time += team.length
    return [length for _, _, length in sorted(starts)[:num_episodes]]


@pytest.mark.parametrize(
    ("num_envs", "num_episodes", "num_groups"), [(4, 3, 1), (4, 30, 2), (1, 6, 1)]
)
def test_an_episode_is_that_of_all_agents_when_some_leave_early(
    num_envs: int, num_episodes: int, num_groups: int
) -> None:
    scores = play(num_episodes, num_envs=num_envs, num_groups=num_groups)
    lengths = earliest_lengths(num_envs, num_episodes)
    assert set(lengths) == {1, 9}
    assert scores.lengths.tolist() == lengths
    # agents earn 1, 11 and 21 per step, the last one in one step only
    assert scores.returns == pytest.approx([(12 * length + 21) / 3 for length in lengths])
    assert scores.agents is not None
    assert scores.agents.returns.tolist() == [[n, 11.0 * n, 21.0] for n in lengths]
    assert scores.agents.lengths.tolist() == [[n, n, 1] for n in lengths]


def test_each_agent_keeps_its_own_numbers_when_an_episode_ends() -> None:
    scores = play(5)
    assert scores.agents is not None
    told = [
        [{"age": length, "name": 0}, {"age": length, "name": 1}, {"age": 1, "name": 2}]
        for length in scores.lengths
    ]
    assert scores.agents.infos == told


@pytest.mark.parametrize(("share", "num_evaluated"), [(0.01, 1), (0.5, 2), (0.7, 3), (0.99, 3)])
def test_only_the_evaluated_agents_count_when_another_policy_plays_the_rest(
    share: float, num_evaluated: int
) -> None:
    scores = play(
        6,
        team=lambda: Team(4),
        num_groups=3,
        npc_policy=always(0),
        policy_agents_pct=share,
    )
    agents = scores.agents
    assert agents is not None
    assert agents.evaluated.tolist() == [index < num_evaluated for index in range(4)]
    assert (agents.returns[:, :num_evaluated] > 0).all()
    assert (agents.returns[:, num_evaluated:] == 0).all()
    rates = np.arange(4)[:num_evaluated] * 10 + 1
    assert scores.returns == pytest.approx(scores.lengths * rates.mean())


def test_the_roles_are_the_other_way_round_when_policies_change_places() -> None:
    scores = play(
        4, team=lambda: Team(4), policy=always(0), npc_policy=always(1), policy_agents_pct=0.5
    )
    assert scores.agents is not None
    assert scores.mean == 0.0
    assert (scores.agents.returns[:, 2:] > 0).all()


def test_agents_that_were_never_there_do_not_count_when_scores_are_means() -> None:
    class LateTeam(Team):
        """The second agent never comes."""

        def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            super().reset(seed, options)
            self.agents.remove("agent1")
            return self._seen(self.agents), {name: {} for name in self.agents}

    scores = play(4, team=lambda: LateTeam(3))
    assert scores.agents is not None
    assert (scores.agents.lengths[:, 1] == 0).all()
    assert scores.returns == pytest.approx((scores.lengths + 21) / 2)


def test_an_episode_goes_on_when_an_agent_joins_later() -> None:
    class GrowingTeam(Team):
        """The last agent comes after the second step, for one step."""

        def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            super().reset(seed, options)
            self.agents.pop()
            return self._seen(self.agents), {name: {} for name in self.agents}

        def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
            seen, *rest = super().step(actions)
            if self.now == 2:
                self.agents.append(self.possible_agents[-1])
                seen = self._seen(self.possible_agents)
            return seen, *rest

    scores = play(4, team=lambda: GrowingTeam(3, (9,)), num_envs=2)
    assert scores.lengths.tolist() == [9] * 4
    assert scores.agents is not None
    assert scores.agents.lengths.tolist() == [[9, 9, 1]] * 4
    assert scores.returns == pytest.approx([(9 + 99 + 21) / 3] * 4)


def test_a_world_ends_for_all_when_grid_worlds_are_played() -> None:
    vec_env = GridVecEnv([TASKS["gather"]], num_envs=2)
    with closing(vec_env):
        policy = make_policy(vec_env.observation_space, vec_env.action_space)
        scores = run_episodes(policy, vec_env, 3, seed=1)
    assert scores.lengths.tolist() == [128] * 3  # the horizon of that world
    assert scores.agents is not None
    assert scores.agents.returns.shape == (3, 4)
    assert scores.returns == pytest.approx(scores.agents.returns.mean(1))
    assert all(numbers for episode in scores.agents.infos for numbers in episode)


@pytest.mark.parametrize(
    ("num_agents", "share", "has_npc", "words"),
    [
        (1, 0.5, True, "two policies cannot share an environment with one agent"),
        (4, 0.5, False, "policy_agents_pct=0.5 leaves agents to another policy"),
    ],
)
def test_a_config_error_is_raised_when_agents_cannot_be_shared(
    num_agents: int, share: float, has_npc: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        evaluated_agents(num_agents, share, has_npc=has_npc)


def test_everything_is_there_again_when_results_were_plain_data() -> None:
    scores = play(3)
    again = EpisodeScores.from_dict(scores.to_dict())
    assert again.agents is not None
    assert scores.agents is not None
    assert again.to_dict() == scores.to_dict()
    assert again.returns.tolist() == scores.returns.tolist()
    assert again.agents.returns.shape == scores.agents.returns.shape
    assert scores.summary() == scores.to_dict()
