"""Compiled updates on Pong, beside eager ones; needs the extra ``atari`` and a C++ compiler."""

import pytest
import torch

from metta import PPOTrainer
from metta.rl.compiled.cache import compiler_name
from metta.rl.learn.optimizer import AdamState, FlatAdam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(compiler_name() is None, reason="there is no C++ compiler"),
]


def adam_of(trainer: PPOTrainer) -> AdamState:
    """Parameters, moments and the count of steps."""
    optimizer = trainer.ppo.optimizer
    assert isinstance(optimizer, FlatAdam)
    return optimizer.tensors


def test_twenty_updates_on_pong_agree_with_the_eager_ones() -> None:
    vector_env = pytest.importorskip(
        "ale_py.vector_env", reason="the extra 'atari' is not installed"
    )

    def trainer(driver: str) -> PPOTrainer:
        env = vector_env.AtariVectorEnv(
            "pong",
            num_envs=8,
            frameskip=4,
            stack_num=4,
            img_height=84,
            img_width=84,
            grayscale=True,
        )
        settings = {
            "numerics.driver": driver,
            "horizon": 32,
            "learning_rate": 2.5e-4,
            "numerics.threads": 1,
        }
        return PPOTrainer(None, env, ent_coef=0.01, num_minibatches=2, update_epochs=2, **settings)

    with trainer("eager") as eager, trainer("step") as compiled:
        assert compiled.plan.driver == "step"
        for _ in range(20):
            # rounding grows from update to update, as it does between eager runs with one and two
            # threads (to 6e-4 of a weight after twenty), so each update begins from the same weights
            for mine, other in zip(adam_of(compiled), adam_of(eager), strict=True):
                mine.copy_(other)
            rollout = eager.collect_rollouts(32)
            wanted, found = eager.learn(rollout), compiled.learn(rollout)
            assert wanted["optimizer_steps"] == found["optimizer_steps"] == 4
            assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
            mine, other = adam_of(compiled), adam_of(eager)
            assert torch.equal(mine.step_count, other.step_count)
            # where a gradient is mere rounding Adam steps by its sign, so single weights may differ
            assert float((mine.flat - other.flat).abs().mean()) < 1e-7
            for name in ("exp_avg", "exp_avg_sq"):
                moment, wanted_moment = getattr(mine, name), getattr(other, name)
                limit = 1e-4 * float(wanted_moment.abs().max())
                assert float((moment - wanted_moment).abs().max()) < limit
