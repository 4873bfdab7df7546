import dataclasses
from contextlib import closing
from pathlib import Path

import gymnasium
import pytest
import torch

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum, Task
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv, CountdownEnv
from metta.envs.workers.worker import pack, unpack
from metta.errors import ConfigError, PolicyError
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.sim import SuiteResults, run_episodes
from metta.store.loaded_policy import load_policy
from metta.store.policy_store import PolicyStore
from metta.train.parsing.yaml_text import write_yaml
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig
from metta.train.train_config import AgentConfig, CurriculumConfig, EvaluationConfig
from tests.sim.team_envs import ACTIONS, OBSERVATIONS, Team, always


def policy_for(env: gymnasium.Env) -> Policy:
    return make_policy(env.observation_space, env.action_space)


def test_the_score_is_the_mean_return_when_episodes_are_played() -> None:
    policy = policy_for(CountdownEnv())
    evaluator = PolicyEvaluator(CountdownEnv, EvaluationConfig(eval_episodes=5, eval_envs=2))
    scores = evaluator.evaluate(policy)
    assert evaluator.last is not None
    assert len(evaluator.last.returns) == 5
    assert scores.simulation_scores == {"training/CountdownEnv": evaluator.last.mean}


def test_the_same_episodes_are_played_when_a_policy_is_scored_twice() -> None:
    policy, config = policy_for(CorridorEnv()), EvaluationConfig(eval_episodes=6)
    first = PolicyEvaluator(CorridorEnv, config, seed=3)
    assert first.evaluate(policy) == first.evaluate(policy)
    other = PolicyEvaluator(CorridorEnv, config, seed=4)
    other.evaluate(policy)
    assert first.last is not None
    assert other.last is not None
    assert first.last.lengths.tolist() != other.last.lengths.tolist()


def test_arguments_reach_the_environment_when_the_task_has_some() -> None:
    config = CurriculumConfig(env="CartPole-v1", env_kwargs={"max_episode_steps": 3})
    policy = policy_for(gymnasium.make("CartPole-v1"))
    scores = PolicyEvaluator(Curriculum(config).task, EvaluationConfig(eval_episodes=2)).evaluate(
        policy
    )
    assert scores.simulation_scores == {"training/CartPole-v1": 3.0}


def test_nothing_is_played_when_no_episodes_are_asked_for() -> None:
    evaluator = PolicyEvaluator(Task("Unknown-v0"), EvaluationConfig(eval_episodes=0))
    assert evaluator.evaluate(policy_for(CorridorEnv())).simulation_scores == {}


def test_the_policy_and_its_mode_stay_when_it_is_scored() -> None:
    policy = policy_for(CorridorEnv()).train()
    before = policy.parameter_hash()
    PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=3)).evaluate(policy)
    assert (policy.parameter_hash(), policy.training) == (before, True)
    assert torch.is_grad_enabled()


SUITE = SimulationSuiteConfig(
    name="corridors",
    simulations={
        "corridor/own": SimulationConfig(num_episodes=3),
        "pole/short": SimulationConfig(env="CartPole-v1", env_kwargs={"max_episode_steps": 3}),
    },
)


def cartpole_policy() -> Policy:
    with closing(gymnasium.make("CartPole-v1")) as env:
        return policy_for(env)


def test_the_training_task_joins_when_a_suite_is_named(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "suite.yaml", SUITE.to_dict())
    config = EvaluationConfig(eval_episodes=4, suite=str(path))
    task = Task("CartPole-v1", {"max_episode_steps": 5})
    evaluator = PolicyEvaluator(task, config)
    scores = evaluator.evaluate(cartpole_policy())
    # the poles never fall within so few steps
    assert scores.simulation_scores == {
        "training/CartPole-v1": 5.0,
        "corridor/own": 5.0,
        "pole/short": 3.0,
    }
    assert scores.category_scores == {"training": 5.0, "corridor": 5.0, "pole": 3.0}
    lengths = {name: len(one.returns) for name, one in evaluator.results.episodes.items()}
    assert lengths == {"training/CartPole-v1": 4, "corridor/own": 3, "pole/short": 4}
    assert evaluator.last is evaluator.results.episodes["training/CartPole-v1"]


def test_the_suite_alone_is_played_when_it_is_given() -> None:
    task = Task("CartPole-v1", {"max_episode_steps": 2})
    evaluator = PolicyEvaluator(SUITE, EvaluationConfig(eval_episodes=2), training_task=task)
    scores = evaluator.evaluate(cartpole_policy())
    assert scores.simulation_scores == {"corridor/own": 2.0, "pole/short": 3.0}


def test_a_config_error_is_raised_when_a_suite_needs_a_training_task() -> None:
    with pytest.raises(
        ConfigError, match=r"'corridor/own' .* has no env, and there is no training"
    ):
        PolicyEvaluator(SUITE)


def test_a_config_error_is_raised_early_when_there_is_no_such_suite() -> None:
    with pytest.raises(ConfigError, match="there is no suite 'nothing'"):
        PolicyEvaluator(CorridorEnv, EvaluationConfig(suite="nothing"))


def test_fitting_classics_are_played_when_the_named_suite_is_asked_for() -> None:
    config = EvaluationConfig(eval_episodes=1, suite="classic")
    evaluator = PolicyEvaluator("CartPole-v1", config)
    scores = evaluator.evaluate(cartpole_policy()).simulation_scores
    assert list(scores) == ["training/CartPole-v1", "classic/cartpole"]
    assert scores["training/CartPole-v1"] == scores["classic/cartpole"]
    assert len(evaluator.results.left_out) == 4


def test_another_policy_plays_along_when_it_is_named(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path)
    team = Task(Team, {"num_agents": 4})
    other = make_policy(OBSERVATIONS, ACTIONS, AgentConfig(hidden_size=8), seed=3)
    record = store.save(other, "other", 1, metadata={"agent": dataclasses.asdict(other.config)})
    shared = SimulationConfig(npc_policy_uri=record.uri, policy_agents_pct=0.5)
    suite = SimulationSuiteConfig(simulations={"team/half": shared, "team/all": SimulationConfig()})
    evaluator = PolicyEvaluator(
        suite, EvaluationConfig(eval_episodes=6), training_task=team, policy_store=store
    )
    evaluator.evaluate(always(0))
    half, whole = (evaluator.results.episodes[name].agents for name in suite.simulations)
    assert half is not None
    assert whole is not None
    assert half.evaluated.tolist() == [True, True, False, False]
    assert whole.evaluated.all()
    assert (whole.returns == 0).all()
    assert (half.returns[:, :2] == 0).all()
    assert (half.returns[:, 2:] > 0).any()  # the other one takes action 1 at times


def test_intervals_surround_the_scores_when_statistics_are_asked_for() -> None:
    evaluator = PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=12))
    scores = evaluator.evaluate(policy_for(CorridorEnv()))
    found = evaluator.statistics()
    assert list(found) == ["training/CorridorEnv", "training"]
    one = found["training/CorridorEnv"]
    assert one.value == pytest.approx(scores.simulation_scores["training/CorridorEnv"])
    assert one.low < one.value < one.high
    assert one.count == 12


def test_another_process_begins_afresh_when_an_evaluator_travels() -> None:
    gymnasium.register("metta-test/Travelling-v0", entry_point=CorridorEnv)
    try:
        evaluator = PolicyEvaluator("metta-test/Travelling-v0", EvaluationConfig(eval_episodes=2))
        first = evaluator.evaluate(policy_for(CorridorEnv()))
        travelling = pack(evaluator)
    finally:
        del gymnasium.registry["metta-test/Travelling-v0"]
    arrived = unpack(travelling)
    try:
        assert arrived.results == SuiteResults()
        assert arrived.evaluate(policy_for(CorridorEnv())) == first
    finally:
        del gymnasium.registry["metta-test/Travelling-v0"]


def test_a_loaded_policy_scores_like_the_saved_one_when_it_is_played(tmp_path: Path) -> None:
    policy = policy_for(CorridorEnv())
    saved = PolicyStore(tmp_path).save(policy, "walker", 1, 0)
    agent = load_policy(saved.uri)
    evaluator = PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=4))
    assert evaluator.evaluate(agent) == evaluator.evaluate(policy)
    with closing(make_vec_env(CorridorEnv, num_envs=2)) as envs:
        found = run_episodes(agent, envs, 6, seed=3)
        wanted = run_episodes(policy, envs, 6, seed=3)
    assert (found.returns == wanted.returns).all()


def test_the_error_says_what_to_pass_when_a_bare_network_is_played() -> None:
    with (
        closing(make_vec_env(CorridorEnv, num_envs=1)) as envs,
        pytest.raises(PolicyError, match=r"found a Linear; .*metta\.Policy\(network"),
    ):
        run_episodes(torch.nn.Linear(1, 1), envs, 1, seed=0)  # type: ignore[arg-type]
