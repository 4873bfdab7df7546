"""Bad inputs of real users through every door: typed errors that say what to change, no tracebacks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from metta import PPOTrainer, load_policy
from metta.agent.metta_agent import MettaAgent
from metta.agent.policy import Policy
from metta.cli.main import main
from metta.curriculum import Curriculum
from metta.envs import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import MettaError
from metta.rl.components import Trainer
from metta.rl.functional_trainer import functional_training_loop
from metta.train.train_config import TrainingConfig

COMMANDS: dict[str, tuple[list[str], str]] = {
    "number as text": (["train", "lr=fast"], "allowed is a number above 0"),
    "negative rate": (["train", "lr=-1"], "allowed is a number above 0"),
    "comma for a point": (["train", "gamma=0,99"], "found '0,99'"),
    "nan": (["train", "lr=nan"], "allowed is a number above 0"),
    "infinite rate": (["train", "lr=inf"], "allowed is a number above 0"),
    "percent": (["train", "clip_range=20%"], "found '20%'"),
    "no environments": (["train", "num_envs=0"], "allowed is a whole number of at least 1"),
    "half an environment": (["train", "num_envs=2.5"], "allowed is a whole number"),
    "too many steps": (["train", "total_timesteps=1e30"], "at most 9,223,372,036,854,775,807"),
    "no steps": (["train", "--total-timesteps", "0"], "of at least 1"),
    "a huge seed": (["train", f"seed={2**80}"], "at most 9,223,372,036,854,775,807"),
    "no seed": (["train", "seed=None"], "random.randrange"),
    "a switch as a count": (["train", "n_steps=true"], "found 'true'; allowed is a whole number"),
    "a misspelt id": (["train", "Cartpole-v1"], "did you mean 'CartPole-v1'"),
    "an unknown id": (["train", "Nonesuch-v9"], "Nonesuch-v9"),
    "a missing module": (["train", "no_such_module:Env-v0"], "no_such_module"),
    "a missing class": (["train", "json:Env"], "json"),
    "a missing file": (["train", "nowhere/env.py:Env"], "nowhere/env.py"),
    "a missing YAML file": (["train", "nowhere.yaml"], "nowhere.yaml"),
    "a GPU that is not there": (["train", "device=cuda:99"], "cannot be used here"),
    "a device nobody knows": (["train", "device=gpu"], "use 'cpu' or 'auto'"),
    "a misspelt setting": (["train", "learning_rat=1"], "did you mean 'learning_rate'"),
    "another library's flag": (["train", "--use-sde"], "write std=state"),
    "another library's network": (["train", "net_arch=[64,32]"], "your own nn.Module"),
    "the same twice": (["train", "lr=1e-3", "learning_rate=1e-4"], "give one of them"),
    "a bad choice": (["train", "core=transformer"], "'none', 'lstm' or 'gru'"),
    "a bad schedule": (["train", "lr_schedule=lambda"], "allowed is 'constant'"),
    "minibatches that do not divide": (["train", "CartPole-v1", "batch_size=100"], "try minibatch"),
    "groups that do not divide": (["train", "num_envs=8", "num_groups=3"], "try num_envs=9"),
    "more workers than environments": (["train", "num_workers=64"], "num_workers=64"),
    "more than any machine": (["train", "num_envs=2000000000"], "lower num_envs or horizon"),
    "a group as a value": (["train", "ppo=3"], "allowed is a group of settings"),
    "an ambiguous name": (["train", "schedule_end=0.5"], "write which"),
    "two presets": (["train", "cartpole", "grid"], "the preset already"),
    "a run that is not there": (["resume", "nowhere"], "nowhere"),
    "a policy that is not there": (["eval", "nowhere.safetensors"], "nowhere"),
    "a replay that is not there": (["replay", "nowhere"], "nowhere"),
    "a path as a run": (["train", "--run", "../evil"], "--run"),
    "a file as a folder": (["train", "--output", "/dev/null"], "cannot be written"),
    "a key in a setting": (
        ["train", "env_kwargs={api_key: sk-abcdefghijklmnopqrstuvwxyz123456}"],
        "settings are written to files",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_when_its_input_is_bad(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = COMMANDS[name]
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(str(ended.code))
    shown = capsys.readouterr()
    assert status in (1, 2)
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert "training " not in shown.out


class Net(nn.Module):
    """A policy with one thing wrong."""

    def __init__(self, returned: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        width = int(np.prod(CorridorEnv().observation_space.shape or ()))
        self.actor, self.critic, self.returned = nn.Linear(width, 2), nn.Linear(width, 1), returned

    def forward(self, obs: Any) -> Any:
        return self.returned(self.actor(obs), self.critic(obs))


def trainer(**settings: Any) -> PPOTrainer:
    given = {
        "hidden_size": 4,
        "horizon": 8,
        "num_envs": 2,
        "verbose": False,
        "driver": "eager",
    } | settings
    return PPOTrainer(None, CorridorEnv, **given)


def pair(logits: Any, value: Any) -> Any:
    return logits, value


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no environment": (lambda: PPOTrainer(None), r"PPOTrainer\(None, env\)"),
    "an id alone": (lambda: PPOTrainer("CartPole-v1"), r"PPOTrainer\(None, env\)"),
    "policy and environment swapped": (
        lambda: PPOTrainer(CorridorEnv(), Net(pair)),  # type: ignore[arg-type]  # the mistake
        "the policy comes first",
    ),
    "a number as an environment": (lambda: PPOTrainer(None, 3), "cannot make an environment"),
    "no factories": (lambda: PPOTrainer(None, []), "cannot make an environment"),
    "a class as a policy": (lambda: PPOTrainer(nn.Linear, CorridorEnv), "not the class"),  # type: ignore[arg-type]  # the mistake
    "a misspelt policy": (lambda: PPOTrainer("MlpPolcy", CorridorEnv), "did you mean 'MlpPolicy'"),
    "one output": (lambda: PPOTrainer(Net(lambda a, _: a), CorridorEnv), "cannot read; return"),
    "a value per batch": (
        lambda: PPOTrainer(Net(lambda a, v: (a, v.mean())), CorridorEnv),
        "one value per row",
    ),
    "too few logits": (
        lambda: PPOTrainer(Net(lambda a, v: (a[:, :1], v)), CorridorEnv),
        "change the module's last layer",
    ),
    "float64": (lambda: PPOTrainer(Net(pair).double(), CorridorEnv), r"module\.float\(\)"),
    "nothing to train": (
        lambda: PPOTrainer(Net(pair).requires_grad_(False), CorridorEnv),
        "none can be trained",
    ),
    "True as steps": (lambda: trainer(n_steps=True), "allowed is a whole number"),
    "True as a rate": (lambda: trainer(gamma=True), "allowed is a number"),
    "a schedule as a rate": (lambda: trainer(lr=lambda _: 1e-3), "lr_schedule='linear'"),
    "an optimizer as a rate": (lambda: trainer(lr=torch.optim.Adam), "found"),
    "a wrong config": (lambda: trainer(config="x.yaml"), r"TrainingConfig\.from_yaml\(path\)"),
    "a number as a folder": (lambda: trainer(checkpoint_dir=3), "the path of a folder"),
    "one loss": (
        lambda: trainer(custom_losses=lambda values: values),
        r"custom_losses=\[my_loss\]",
    ),
    "a loss that is a number": (lambda: trainer(custom_losses=[3]), "must be a function"),
    "an idle setting": (lambda: trainer(tensorboard=True), "has no effect in PPOTrainer"),
    "a long rollout": (lambda: trainer(horizon=10**12), "GB; lower horizon"),
    "a wide network": (lambda: trainer(hidden_size=10**7), "GB; lower one of them"),
    "a deep network": (lambda: trainer(num_layers=10**12), "GB; lower one of them"),
    "many environments": (lambda: trainer(num_envs=10**9), "GB; lower num_envs or horizon"),
    "no training": (lambda: trainer().train(0), "from 1 to"),
    "negative training": (lambda: trainer().train(-5), "from 1 to"),
    "text as steps": (lambda: trainer().train("1000"), "allowed is a whole number"),  # type: ignore[arg-type]  # the mistake
    "a callback": (lambda: trainer().train(8, callback=print), "hooks are the callbacks"),
    "one hook": (lambda: trainer().train(8, hooks=print), r"hooks=\[hook\]"),  # type: ignore[arg-type]  # the mistake
    "a hook that is none": (lambda: trainer().train(8, hooks=[3]), "int"),
    "learn with steps": (
        lambda: trainer().learn(total_timesteps=8),
        r"use train\(total_timesteps=8",
    ),
    "learn without data": (lambda: trainer().learn(), r"what collect_rollouts\(\) returns"),
    "learn with a list": (lambda: trainer().learn([1.0]), "got a list"),  # type: ignore[arg-type]  # the mistake
    "a missing rollout": (lambda: trainer().learn("nowhere.safetensors"), "nowhere"),
    "an empty buffer": (lambda: trainer().ppo.compute_advantages({}), "collect one first"),
    "save without a folder": (lambda: trainer().save(), "needs a folder"),
    "load without a trainer": (lambda: PPOTrainer.load("x"), r"trainer\.load\('x'\)"),  # type: ignore[arg-type]  # the mistake
    "load from nowhere": (lambda: trainer().load("nowhere"), "no checkpoint in 'nowhere'"),
    "predict a tuple": (
        lambda: trainer().predict(CorridorEnv().reset(seed=0)),
        "pass the observation",
    ),
    "predict another shape": (lambda: trainer().predict(np.zeros(99)), r"shape \(99,\)"),
    "predict NaN": (
        lambda: trainer().predict(np.full(CorridorEnv().observation_space.shape or (), np.nan)),
        "NaN",
    ),
    "collect True": (lambda: trainer().collect_rollouts(True), "whole number of steps"),
    "Trainer of a number": (lambda: Trainer(3), "give a TrainerConfig"),  # type: ignore[arg-type]  # the mistake
    "Trainer of a misspelling": (
        lambda: Trainer({"learning_rat": 1}),
        "did you mean 'learning_rate'",
    ),
    "Trainer without its run": (lambda: Trainer({}, run_name="x"), "give run_dir as well"),
    "Trainer of an unknown id": (lambda: Trainer({"env": "Nope-v0"}).setup(), "Nope"),
    "Trainer of float64": (lambda: Trainer({}, None, Net(pair).double()).setup(), "."),
    "a loop of an unknown id": (
        lambda: functional_training_loop(TrainingConfig.from_dict({"env": "Nope-v0"}).trainer),
        "Nope",
    ),
    "an agent of an id": (lambda: MettaAgent("CartPole-v1"), "give an environment"),
    "an agent of a number": (lambda: MettaAgent(CorridorEnv(), 3), "TrainingConfig or a mapping"),  # type: ignore[arg-type]  # the mistake
    "no environments to make": (lambda: make_vec_env("CartPole-v1", num_envs=0), "at least 1"),
    "negative workers": (lambda: make_vec_env(CorridorEnv, num_workers=-1), "use 0 to step"),
    "late arguments": (lambda: make_vec_env(CorridorEnv(), env_kwargs={"a": 1}), "came too late"),
    "an environment class of strings": (lambda: make_vec_env(str), "str"),  # type: ignore[arg-type]  # the mistake
    "a policy of text spaces": (
        lambda: Policy(Net(pair), gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)),
        "Text",
    ),
    "a policy from nowhere": (lambda: load_policy("nowhere.safetensors"), "nowhere"),
    "a curriculum of nothing": (
        lambda: Curriculum(
            TrainingConfig.from_dict({"curriculum.kind": "random"}).trainer.curriculum
        ),
        "tasks",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_explains_when_its_input_is_bad(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = CALLS[name]
    with pytest.raises(MettaError, match=message):
        call()


def test_there_are_many_of_them() -> None:
    assert len(COMMANDS) + len(CALLS) >= 60
