"""Names and values of other libraries: taken where they mean the same, else answered."""

from pathlib import Path
from typing import Any

import pytest

from metta.cli.arguments import resolve_arguments
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.changes import config_of
from metta.train.foreign_names import EARLIER_NAMES, FOREIGN_NAMES
from metta.train.settings import ALIASES, setting_paths, setting_values
from metta.train.train_config import TrainingConfig

SAME: list[tuple[str, Any, str, Any]] = [
    ("anneal_lr", True, "trainer.optimizer.schedule", "linear"),
    ("anneal_lr", False, "trainer.optimizer.schedule", "constant"),
    ("normalize_images", True, "agent.image_scale", 255.0),
    ("normalize_images", False, "agent.image_scale", 1.0),
    ("cuda", True, "trainer.device", "auto"),
    ("cuda", False, "trainer.device", "cpu"),
    ("track", False, "trainer.logging.wandb.mode", "off"),
    ("norm_obs", True, "agent.normalize_observations", True),
    ("verbose", 0, "trainer.verbose", False),
    ("verbose", 1, "trainer.verbose", True),
    ("verbose", 2, "trainer.verbose", True),
    ("mode", "disabled", "trainer.logging.wandb.mode", "off"),
    ("use_sde", False, "agent.std", "parameter"),
    ("clip_vloss", False, "trainer.ppo.vf_clip_coef", None),
    ("torch_deterministic", True, "trainer.seed", 1),
    ("use_lstm", True, "agent.core", "lstm"),
    ("num_gpus", 0, "trainer.device", "cpu"),
    ("lambda_", 0.9, "trainer.ppo.gae_lambda", 0.9),
    ("tensorboard_log", None, "trainer.logging.tensorboard", False),
]

ANSWERED: list[tuple[str, Any, str]] = [
    ("seed", None, r"trainer\.seed: found '?None'?, but.*write seed=random\.randrange"),
    ("net_arch", [32, 32, 32], "write hidden_size=32 and num_layers=3"),
    ("net_arch", [64, 32], r"your own nn\.Module as the policy"),
    ("track", True, r"write logging\.wandb\.mode=online"),
    ("norm_reward", True, "write normalize_returns=true"),
    ("use_sde", True, "write std=state"),
    ("ent_coef", "auto", "which is for SAC.*write ent_coef=0.01"),
    ("tensorboard_log", "./logs", "write tensorboard=true.*folder tensorboard of the run"),
    ("clip_vloss", True, r"write vf_clip_coef=0\.2"),
    ("train_batch_size", 4000, "write num_envs=8 and horizon=500"),
    ("kl_coeff", 0.2, r"write target_kl=0\.02"),
    ("losses", "mine", r"write PPOTrainer\(\.\.\., custom_losses="),
    ("eval_freq", 1000, "write evaluate_interval=10"),
    ("n_eval_episodes", 5, "write eval_episodes=20"),
    ("callback", "mine", r"hooks=\[MyHook\(\)\]"),
    ("anneal_lr", "linear", "anneal_lr: found 'linear'; allowed is true or false"),
]

PYTHON_ONLY: list[tuple[str, Any, str]] = [
    ("learning_rate", lambda left: left * 1e-3, "learning_rate=3e-4 and lr_schedule='linear'"),
    ("lr", lambda left: left * 1e-3, r"trainer\.optimizer\.learning_rate: found a function"),
    ("clip_range", lambda left: left * 0.2, "clip_coef=0.2 and clip_schedule='linear'"),
    ("net_arch", {"pi": [32, 32], "vf": [32, 32]}, "write hidden_size=32 and num_layers=2"),
    ("net_arch", {"pi": [32, 32], "vf": [64]}, r"your own nn\.Module as the policy"),
    ("policy_kwargs", {"net_arch": [16, 16]}, "write hidden_size=16 and num_layers=2"),
    ("policy_kwargs", {"activation_fn": int}, "activation_fn is activation='tanh'"),
]


@pytest.mark.parametrize(("name", "value", "path", "meant"), SAME)
def test_a_foreign_name_is_taken_when_it_means_the_same(
    name: str, value: Any, path: str, meant: Any
) -> None:
    settings: dict[str, Any] = {"hidden_size": 4, name: value}
    with PPOTrainer(None, CorridorEnv, **settings) as trainer:
        assert setting_values(trainer.config)[path] == meant
    typed = resolve_arguments(["CartPole-v1", f"{name}={str(value).lower()}"], [])
    assert setting_values(typed.config)[path] == meant
    if name not in ("use_sde", "torch_deterministic", "tensorboard_log"):  # nothing to set
        assert str(typed.origins[path]) == "command line"


@pytest.mark.parametrize(("name", "value", "answer"), [*ANSWERED, *PYTHON_ONLY])
def test_the_replacement_is_named_when_a_foreign_setting_is_given(
    name: str, value: Any, answer: str
) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=answer):
        PPOTrainer(None, CorridorEnv, **settings)


@pytest.mark.parametrize(("name", "value", "answer"), ANSWERED)
def test_the_command_line_gives_the_same_answers(name: str, value: Any, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        resolve_arguments(["CartPole-v1", f"{name}={value}"], [])


def test_one_of_two_is_asked_for_when_a_foreign_name_sets_the_same() -> None:
    with pytest.raises(ConfigError, match="'lr_schedule' and 'anneal_lr' both set"):
        PPOTrainer(None, CorridorEnv, lr_schedule="cosine", anneal_lr=True)


@pytest.mark.parametrize("name", ["background", "evaluation.background", *EARLIER_NAMES])
@pytest.mark.parametrize(("value", "where"), [(True, "process"), (False, "here")])
def test_a_setting_of_an_older_version_keeps_its_meaning(
    tmp_path: Path, name: str, value: bool, where: str
) -> None:
    path, text = "trainer.evaluation.where", str(value).lower()
    typed = resolve_arguments(["cartpole", f"{name}={text}"], [])
    assert setting_values(typed.config)[path] == where
    (tmp_path / "config.yaml").write_text(f"trainer:\n  evaluation: {{background: {text}}}\n")
    assert TrainingConfig.from_yaml(tmp_path / "config.yaml").trainer.evaluation.where == where
    saved = config_of({"trainer.evaluation.background": value})  # as a checkpoint has it
    assert saved.trainer.evaluation.where == where
    with pytest.raises(ConfigError, match="'background' and 'where' both set"):
        TrainingConfig.from_dict({"background": value, "where": "queue"})


def test_no_foreign_name_is_a_setting() -> None:
    assert not FOREIGN_NAMES.keys() & {*setting_paths(), *ALIASES}


@pytest.mark.parametrize(
    "name", ["verbose", "wandb.mode", "ent_coef", *sorted(FOREIGN_NAMES.keys() - {"num_gpus"})]
)
def test_a_number_too_large_to_be_written_is_refused_like_any_other(name: str) -> None:
    with pytest.raises(ConfigError):
        TrainingConfig.from_dict({name: 10**5000})
