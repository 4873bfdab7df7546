"""Each duty of the managers, on real parts."""

import gymnasium
import pytest
import torch

from metta.curriculum import Curriculum
from metta.envs.backends.multiprocess import MultiprocessVecEnv
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError, StateError
from metta.rl.components.environment_manager import EnvironmentManager
from metta.rl.components.evaluation_manager import EvaluationManager
from metta.rl.components.optimizer_manager import OptimizerManager
from metta.rl.components.rollout_manager import RolloutManager
from metta.rl.components.stats_manager import StatsManager
from metta.rl.components.training_manager import TrainingManager
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.train.train_config import (
    CurriculumConfig,
    EvaluationConfig,
    OptimizerConfig,
    PPOConfig,
    RolloutConfig,
    TrainerConfig,
)

SMALL = {"num_envs": 2, "n_steps": 8, "hidden_size": 8, "n_epochs": 2, "num_minibatches": 2,
         "recipe": "none"}  # fmt: skip


@pytest.fixture
def trainer():
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        yield trainer


def test_rollout_manager_collects_experience_when_asked(trainer: PPOTrainer) -> None:
    manager = RolloutManager(trainer.collector)
    stats, num_steps = manager.collect()
    assert (num_steps, manager.num_rollouts) == (16, 1)
    assert manager.num_episodes == len(stats["episode_return"])
    assert manager.experience is trainer.collector.experience
    assert manager.experience.columns["rewards"].shape == (8, 2)


def test_training_manager_computes_advantages_when_given_a_rollout(trainer: PPOTrainer) -> None:
    manager = TrainingManager(trainer.ppo)
    trainer.collector.collect()
    buffer = trainer.collector.experience
    expected = trainer.ppo.compute_advantages(buffer.columns)
    for given in (buffer, buffer.columns):
        found = manager.compute_advantages(given)
        assert torch.equal(found["advantages"], expected["advantages"])


def test_training_manager_updates_in_minibatches_when_it_trains(trainer: PPOTrainer) -> None:
    manager, before = TrainingManager(trainer.ppo), trainer.policy.parameter_hash()
    trainer.collector.collect()
    losses = manager.train(trainer.collector.experience)
    assert losses["optimizer_steps"] == 4
    assert trainer.policy.parameter_hash() != before
    assert (manager.num_updates, manager.stopped_early) == (1, False)


def test_training_manager_hands_losses_and_progress_on_when_it_trains(trainer: PPOTrainer) -> None:
    called = []

    def loss(new_values: torch.Tensor) -> torch.Tensor:
        called.append(len(new_values))
        return new_values.sum() * 0

    trainer.collector.collect()
    manager = TrainingManager(trainer.ppo, [loss])
    manager.train(trainer.collector.experience, progress=0.5)
    assert len(called) == 4


def test_training_manager_stops_early_when_the_kl_limit_is_passed() -> None:
    settings = {**SMALL, "target_kl": 1e-9, "learning_rate": 0.1, "n_epochs": 8}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        manager = TrainingManager(trainer.ppo)
        trainer.collector.collect()
        losses = manager.train(trainer.collector.experience)
    assert manager.stopped_early
    assert losses["optimizer_steps"] < 16


CONFIG = TrainerConfig(
    curriculum=CurriculumConfig(env="CartPole-v1", env_kwargs={"max_episode_steps": 7}),
    rollout=RolloutConfig(num_envs=4, horizon=16),
    ppo=PPOConfig(num_minibatches=3),
)


@pytest.mark.parametrize(
    ("vectorization", "kind"),
    [(None, SerialVecEnv), ("serial", SerialVecEnv), ("multiprocessing", MultiprocessVecEnv)],
)
def test_environment_manager_makes_what_is_asked_for_when_it_creates(
    vectorization: str | None, kind: type
) -> None:
    manager = EnvironmentManager(CONFIG)
    try:
        assert isinstance(manager.create(vectorization), kind)
        assert manager.num_agents == 4
        assert manager.observation_space.shape == (4,)
        assert isinstance(manager.action_space, gymnasium.spaces.Discrete)
    finally:
        manager.close()


def test_environment_manager_steps_here_when_serial_overrides_workers() -> None:
    config = TrainerConfig(rollout=RolloutConfig(num_envs=2, num_workers=2))
    manager = EnvironmentManager(config)
    assert isinstance(manager.create("serial"), SerialVecEnv)
    manager.close()


def test_environment_manager_knows_batch_sizes_when_environments_exist() -> None:
    manager = EnvironmentManager(CONFIG)
    manager.create()
    assert manager.batch_size == 64
    assert manager.minibatch_sizes == [22, 21, 21]
    manager.close()


def test_environment_manager_gives_access_to_the_curriculum_when_asked() -> None:
    assert EnvironmentManager(CONFIG).curriculum.task.env == "CartPole-v1"
    own = Curriculum(env=CorridorEnv)
    manager = EnvironmentManager(CONFIG, own)
    assert manager.curriculum is own


def test_environment_manager_passes_arguments_on_when_the_task_has_some() -> None:
    with pytest.raises(EnvError, match="no_such_argument"):
        EnvironmentManager(
            TrainerConfig(curriculum=CurriculumConfig(env_kwargs={"no_such_argument": 1}))
        ).create()


def test_environment_manager_closes_once_when_closed_twice() -> None:
    manager = EnvironmentManager(CONFIG)
    manager.close()
    manager.create()
    manager.close()
    manager.close()
    with pytest.raises(EnvError, match="no environments yet"):
        _ = manager.vec_env


def test_environment_manager_refuses_when_the_vectorization_is_unknown() -> None:
    with pytest.raises(ConfigError, match="vectorization='ray'; use 'serial'"):
        EnvironmentManager(CONFIG).create("ray")


def test_optimizer_manager_makes_the_configured_optimizer_when_it_creates() -> None:
    manager = OptimizerManager(OptimizerConfig(name="sgd", learning_rate=0.25))
    with pytest.raises(StateError, match="no optimizer yet"):
        _ = manager.optimizer
    optimizer = manager.create([torch.nn.Parameter(torch.zeros(2))])
    assert isinstance(optimizer, torch.optim.SGD)
    assert manager.learning_rate == 0.25


def test_optimizer_manager_takes_state_back_when_a_checkpoint_has_it(trainer: PPOTrainer) -> None:
    trainer.train(16)
    with PPOTrainer(None, CorridorEnv, **SMALL) as other:
        manager = OptimizerManager(OptimizerConfig(), other.optimizer)
        manager.load_state(trainer.optimizer.state_dict())
        assert torch.equal(other.optimizer.exp_avg, trainer.optimizer.exp_avg)


def test_optimizer_manager_scales_every_group_when_the_rate_is_set() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.3}])
    manager = OptimizerManager(OptimizerConfig(), optimizer)
    manager.learning_rate = 0.2
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.6])


def test_the_rate_stays_when_it_is_set_and_nothing_schedules_it(trainer: PPOTrainer) -> None:
    OptimizerManager(OptimizerConfig(), trainer.optimizer).learning_rate = 0.125
    history = trainer.train(32)
    assert history["learning_rate"] == [0.125, 0.125]


def test_evaluation_manager_scores_and_remembers_when_it_evaluates(trainer: PPOTrainer) -> None:
    state = TrainerState()
    evaluator = PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=3))
    manager = EvaluationManager(evaluator, state)
    assert (manager.scores.simulation_scores, manager.episodes) == ({}, None)
    scores = manager.evaluate(trainer.policy)
    assert manager.scores is scores
    assert state.eval_scores is scores
    assert manager.episodes is not None
    assert len(manager.episodes.returns) == 3


def test_stats_manager_gathers_rollout_stats_when_rollouts_end() -> None:
    manager = StatsManager()
    manager.add_rollout_stats({"episode_return": [1.0, 2.0], "env/key": [5.0]})
    manager.add_rollout_stats({"episode_return": [6.0]})
    row = manager.build_stats({})
    assert (row["env_episode/return"], row["overview/reward"], row["env_info/key"]) == (
        3.0,
        3.0,
        5.0,
    )
    assert manager.tracker is manager.state.stats


def test_stats_manager_measures_gradients_and_weights_when_asked(trainer: PPOTrainer) -> None:
    trainer.learn(trainer.collect_rollouts())
    manager = StatsManager(trainer.state)
    found = manager.compute_grad_stats(trainer.policy)
    flat = torch.cat([p.grad.flatten() for p in trainer.policy.parameters()])
    assert found["norm"] == pytest.approx(float(flat.norm()), rel=1e-5)
    weights = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
    assert manager.compute_weight_stats(trainer.policy)["norm"] == pytest.approx(
        float(weights.norm())
    )
    assert manager.build_stats({})["grad/norm"] == found["norm"]


def test_stats_manager_builds_one_row_when_it_is_time_to_log(trainer: PPOTrainer) -> None:
    data = trainer.collect_rollouts()
    losses = trainer.learn(data)
    trainer.state.agent_step, trainer.state.epoch = 16, 1
    row = StatsManager(trainer.state).build_stats(losses, data)
    assert (row["metric/agent_step"], row["metric/epoch"]) == (16.0, 1.0)
    assert row["losses/policy_loss"] == losses["policy_loss"]
    assert row["experience/rewards_mean"] == pytest.approx(float(data["rewards"].mean()))


def test_stats_manager_keeps_evaluation_scores_when_they_are_set() -> None:
    state = TrainerState()
    manager = StatsManager(state)
    manager.eval_scores = EvalRewardSummary({"training/x": 2.0})
    assert state.eval_scores.avg_category_score == 2.0
    assert manager.build_stats({})["eval_training/score"] == 2.0


def test_stats_manager_begins_anew_when_it_is_cleared() -> None:
    manager = StatsManager(TrainerState(epoch=4))
    manager.add_rollout_stats({"episode_return": [1.0]})
    manager.clear()
    assert (manager.tracker.rollout_stats, manager.tracker.stats_epoch_start) == ({}, 4)
    assert manager.tracker.mean_return == 1.0
