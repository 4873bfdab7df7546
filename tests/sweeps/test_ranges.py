"""Ranges are read by the types of their settings, and refused with what to write instead."""

import pytest

from metta.errors import ConfigError
from metta.sweeps.ranges import Range, is_range, num_values, read_range, values_of

GOOD = {
    "lr=1e-5..1e-2:log": Range(
        "lr", "trainer.optimizer.learning_rate", "float", 1e-5, 1e-2, is_log=True
    ),
    "clip_coef=0.1..0.3": Range("clip_coef", "trainer.ppo.clip_coef", "float", 0.1, 0.3),
    "clip-coef=0.1..0.3:0.1": Range("clip_coef", "trainer.ppo.clip_coef", "float", 0.1, 0.3, 0.1),
    "n_epochs=3..10": Range("n_epochs", "trainer.ppo.update_epochs", "int", 3, 10, 1),
    "horizon=64..512:64": Range("horizon", "trainer.rollout.horizon", "int", 64, 512, 64),
    "horizon=64..512:log": Range("horizon", "trainer.rollout.horizon", "int", 64, 512, is_log=True),
    "log_std_init=-2..0": Range("log_std_init", "agent.log_std_init", "float", -2.0, 0.0),
    "total_timesteps=1e4..3e4:1e4": Range(
        "total_timesteps", "trainer.total_timesteps", "int", 10_000, 30_000, 10_000
    ),
    "minibatch_size=64,128,256": Range(
        "minibatch_size", "trainer.ppo.minibatch_size", "choice", choices=(64, 128, 256)
    ),
    "target_kl=null,0.01": Range(
        "target_kl", "trainer.ppo.target_kl", "choice", choices=(None, 0.01)
    ),
    "activation=tanh,relu": Range(
        "activation", "agent.activation", "choice", choices=("tanh", "relu")
    ),
    "squash=on,off": Range("squash", "agent.squash", "choice", choices=(True, False)),
    "wrappers=[FrameStack(4)],[TimeLimit(9), FrameStack(2)]": Range(
        "wrappers",
        "trainer.curriculum.wrappers",
        "choice",
        choices=(["FrameStack(4)"], ["TimeLimit(9)", "FrameStack(2)"]),
    ),
    "env_kwargs={a: 1},{a: 2}": Range(
        "env_kwargs", "trainer.curriculum.env_kwargs", "choice", choices=({"a": 1}, {"a": 2})
    ),
}
BAD = {
    "lrr=1..3": r"unknown setting 'lrr'; did you mean 'lr'\?",
    "lr=1e-2..1e-5": r"is empty: its low end 1e-2 is not below .*; write lr=1e-5..1e-2",
    "lr=1e-3..1e-3": "is empty",
    "lr=0..1:log": "found '0'; allowed is a number above 0",
    "ent_coef=0..1:log": "a logarithmic range begins above 0",
    "log_std_init=-2..0:log": "a logarithmic range begins above 0",
    "lr=-1..1": "found '-1'; allowed is a number above 0",
    "gamma=0.9..1.5": "found '1.5'; allowed is a number of at least 0 and at most 1",
    "lr=1..inf": "found 'inf'",
    "lr=1..nan": "found 'nan'",
    "n_epochs=1.5..3": "found '1.5'; allowed is a whole number",
    "n_epochs=3..10:1.5": "is a whole number, so its step is one",
    "horizon=64..500:64": "steps of 64 do not lead from 64 to 500; try a high end of 448",
    "horizon=64..100:64": "try a high end of 128",
    "clip_coef=0.1..0.3:0": "a step is a number above 0",
    "clip_coef=0.1..0.3:": "leave ':' out for neither",
    "clip_coef=0.1..0.3:linear": "after ':' comes 'log' or a step; found 'linear'",
    "lr=1e-4...1e-2": "more than two dots between its ends; write lr=1e-4..1e-2",
    f"n_epochs={','.join(map(str, range(1, 300)))}": "n_epochs has 299 values; list at most 200",
    "lr=..2": "is not a range; write lr=LOW..HIGH",
    "lr=1..": "is not a range",
    "target_kl=null..3": "null is no number",
    "activation=1..3": "list its values: activation=A,B",
    "squash=false..true": "list its values: squash=A,B",
    "activation=tanh,rleu": "found 'rleu'; allowed is 'tanh', 'relu'",
    "minibatch_size=64,0": "found '0'; allowed is a whole number of at least 1",
    "minibatch_size=64,x": "found 'x'",
    "clip_coef=0.1,null": "found 'null'; allowed is a number above 0",
    "lr=1e-3,": "a value between its commas is missing",
    "lr=1,1.0": "has 1.0 twice",
    "seed=1,2": "every trial has the same seeds",
    "env=CartPole-v1,Acrobot-v1": "scores of different environments cannot be compared",
    "eval_episodes=5,10": "trials are compared by equal evaluations",
    "keep_last=1..3": "it changes nothing that is learned",
    "num_processes=1,2": "processes are given to trials by --workers",
}


@pytest.mark.parametrize("word", GOOD)
def test_a_range_is_read_when_it_fits_its_setting(word: str) -> None:
    assert is_range(word)
    found = read_range(word)
    assert found == GOOD[word]
    assert Range.from_dict(found.to_dict()) == found
    if found.kind != "choice":
        assert read_range(found.describe()) == found


@pytest.mark.parametrize("word", BAD)
def test_a_range_is_refused_with_what_to_write_when_it_is_wrong(word: str) -> None:
    assert is_range(word)
    with pytest.raises(ConfigError, match=BAD[word]):
        read_range(word)


@pytest.mark.parametrize(
    "word",
    [
        "lr=1e-3",
        "wandb.tags=a,b",
        "env_kwargs={a: 1, b: 2}",
        "suite=../suites/mine.yaml",
        "wrappers=FrameStack(4),TimeLimit(500)",
        "env=module:Maze",
        "opponents=[a, b]",
    ],
)
def test_one_value_is_no_range_when_it_has_commas_or_dots_of_its_own(word: str) -> None:
    assert not is_range(word)


def test_values_are_counted_when_there_are_steps() -> None:
    counts = {word: num_values(found) for word, found in GOOD.items()}
    assert counts["n_epochs=3..10"] == 8
    assert counts["horizon=64..512:64"] == 8
    assert counts["clip-coef=0.1..0.3:0.1"] == 3
    assert counts["minibatch_size=64,128,256"] == 3
    assert counts["lr=1e-5..1e-2:log"] is None
    assert values_of(GOOD["n_epochs=3..10"], 8) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert values_of(GOOD["n_epochs=3..10"], 7) == [3, 4, 9, 10]
    assert values_of(GOOD["horizon=64..512:log"], 9) == [64, 65, 512]
