"""Ranges together: none twice, none fixed as well, and every combination can be trained."""

import pytest

from metta.errors import ConfigError
from metta.sweeps.space import (
    check_combinations,
    combinations,
    read_ranges,
    shown_values,
    with_values,
    words_of,
)
from metta.train.layers import resolve


def test_a_setting_is_refused_when_it_has_two_ranges_under_two_names() -> None:
    with pytest.raises(ConfigError, match=r"'lr=1\.\.2' and 'learning_rate=1,3' are two ranges of"):
        read_ranges(["lr=1..2", "learning_rate=1,3"], {})


def test_a_setting_is_refused_when_it_has_a_value_and_a_range() -> None:
    fixed = {"trainer.optimizer.learning_rate": "learning_rate=1"}
    with pytest.raises(ConfigError, match=r"'learning_rate=1' sets .* and 'lr=1,2' varies it"):
        read_ranges(["lr=1,2"], fixed)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        # 8 environments x 64 to 192 steps: 192 x 8 = 1536 samples are no multiple of 1024
        (
            ["horizon=64..192:64", "minibatch_size=256,1024"],
            "2 of 6 combinations .* horizon=64 minibatch_size=1024: .*1024",
        ),
        # the ends divide the batch of 1024, and their neighbours do not
        (["minibatch_size=64..128"], r"2 of 4 combinations .* minibatch_size=65"),
        (["num_groups=3,5"], "every combination .* num_groups=3: .*does not split"),
        (["num_shards=2,3", "num_envs=8,12"], "1 of 4 combinations .* num_shards=3 num_envs=8"),
        (
            ["core=none,lstm", "horizon=120,128"],
            r"1 of 4 .* core=lstm horizon=120: bptt_horizon=16",
        ),
    ],
)
def test_ranges_are_refused_when_a_combination_breaks_a_rule(
    ranges: list[str], message: str
) -> None:
    base = resolve("CartPole-v1", [], ["num_envs=8", "horizon=128"])
    with pytest.raises(ConfigError, match=message) as caught:
        check_combinations(base.config, read_ranges(ranges, {}))
    assert "choose ranges so that every combination is valid" in str(caught.value)


def test_many_ranges_are_tried_in_a_bounded_number_of_combinations_when_all_are_valid() -> None:
    words = ["lr=1e-5..1e-2:log", "n_epochs=1..40", "gamma=0.9..0.999", "clip_coef=0.1..0.4",
             "ent_coef=0..0.1", "vf_coef=0.1..1", "gae_lambda=0.8..1", "hidden_size=16..512",
             "num_layers=1..4", "horizon=16..512"]  # fmt: skip
    ranges = read_ranges(words, {})
    check_combinations(resolve("CartPole-v1").config, ranges)
    first = next(combinations(ranges))
    assert first["trainer.ppo.update_epochs"] == 1
    config = with_values(resolve("CartPole-v1").config, first)
    assert config.trainer.optimizer.learning_rate == 1e-5


def test_values_are_written_as_a_command_reads_them() -> None:
    words = ["lr=1e-5..1e-2:log", "target_kl=null,0.01", "squash=on,off",
             "wrappers=[FrameStack(4)],[FrameStack(2), TimeLimit(9)]"]  # fmt: skip
    ranges = read_ranges(words, {})
    values = {
        "trainer.optimizer.learning_rate": 0.1 + 0.2,
        "trainer.ppo.target_kl": None,
        "agent.squash": True,
        "trainer.curriculum.wrappers": ["FrameStack(2)", "TimeLimit(9)"],
    }
    written = words_of(ranges, values)
    assert written[:3] == ["lr=0.30000000000000004", "target_kl=null", "squash=true"]
    found = resolve("Acrobot-v1", [], written).config
    assert found.trainer.optimizer.learning_rate == 0.1 + 0.2
    assert (found.trainer.ppo.target_kl, found.agent.squash) == (None, True)
    assert len(found.trainer.curriculum.wrappers) == 2
    assert shown_values(ranges, values).startswith("lr=0.3 target_kl=null")
