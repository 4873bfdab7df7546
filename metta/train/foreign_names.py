"""Settings of other libraries and of older versions: the one here with its value, or what to write."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metta.train.parsing.problems import shown
from metta.train.parsing.values import is_nothing

__all__ = [
    "AS_HERE", "EARLIER_NAMES", "FOREIGN_NAMES", "SWITCHES", "Translation", "advice_for", "translate",
]  # fmt: skip

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Translation(NamedTuple):
    """A setting of metta that means exactly the same."""

    path: str
    value: Any


AS_HERE = Translation("", None)
"""What metta does anyway: nothing to set."""

Answer = Translation | str
"""The same setting here, or the text of the problem, which says what to write instead."""


def _text(value: Any) -> str:
    """The value in words; nothing for integers of so many digits that Python does not write them."""
    try:
        return str(value)
    except ValueError:
        return ""


def _switch(name: str, yes: Answer, no: Answer) -> Callable[[Any], Answer]:
    """The answers to a boolean setting of this name."""

    def answer(value: Any) -> Answer:
        text = _text(value).lower()
        if text in _YES:
            return yes
        return no if text in _NO else f"{name}: found {shown(value)}; allowed is true or false"

    return answer


def _net_arch(value: Any) -> Answer:
    if isinstance(value, str):
        layers = [re.findall(r"\d+", value)]
    else:
        given = list(value.values()) if isinstance(value, Mapping) else [value]
        layers = [
            [shown(size) for size in part] for part in given if isinstance(part, list | tuple)
        ]
    sizes = layers[0] if layers and all(part == layers[0] for part in layers) else []
    widths = set(sizes)
    if len(widths) == 1:
        instead = f"write hidden_size={sizes[0]} and num_layers={len(sizes)}"
    else:
        instead = (
            "layers of one width are hidden_size=64 and num_layers=2; for other networks pass your own "
            "nn.Module as the policy of PPOTrainer"
        )
    return f"net_arch={shown(value)} is not a setting here; {instead}"


def _policy_kwargs(value: Any) -> Answer:
    if isinstance(value, Mapping) and set(value) == {"net_arch"}:
        return str(_net_arch(value["net_arch"])).replace("net_arch=", "policy_kwargs: net_arch=", 1)
    return (
        "policy_kwargs is not a setting here; write its parts as settings: net_arch=[64, 64] is "
        "hidden_size=64 and num_layers=2, activation_fn is activation='tanh', log_std_init keeps its "
        "name; or pass your own nn.Module as the policy of PPOTrainer"
    )


def _norm_reward(_: Any) -> Answer:
    return (
        "norm_reward is not a setting here, because rewards are never changed; write "
        "normalize_returns=true, which learns values in units of the returns' deviation"
    )


def _train_batch_size(value: Any) -> Answer:
    size = int(_text(value)) if _text(value).isdigit() else 0
    instead = f"num_envs=8 and horizon={size // 8}" if size >= 8 else "num_envs=8 and horizon=256"
    return (
        f"train_batch_size={shown(value)} is not a setting here: a rollout is num_envs x horizon steps; "
        f"write {instead}"
    )


def _tensorboard_log(value: Any) -> Answer:
    if is_nothing(value):
        return AS_HERE
    return (
        "tensorboard_log is not a setting here; write tensorboard=true for `metta train` or "
        'Trainer(config, run_dir="runs/first"): the files are in the folder tensorboard of the run'
    )


def _instead(text: str) -> Callable[[Any], Answer]:
    """The same answer to every value but None."""
    return lambda value: AS_HERE if is_nothing(value) else text


_HOOKS = (
    "callbacks are hooks here: PPOTrainer.train(steps, hooks=[MyHook()]), or Trainer.add_hook(MyHook()); "
    "docs/hooks.md shows how to write one"
)
_EVALUATION = (
    "{} is not a setting here; write evaluate_interval=10, which counts epochs, for `metta train` or "
    "`Trainer`"
)
_KL = "PPO has no KL penalty here; write target_kl=0.02, which ends an update that moves too far"
_SWITCHES: dict[str, tuple[Answer, Answer]] = {
    "anneal_lr": (
        Translation("trainer.optimizer.schedule", "linear"),
        Translation("trainer.optimizer.schedule", "constant"),
    ),
    "cuda": (Translation("trainer.device", "auto"), Translation("trainer.device", "cpu")),
    "normalize_images": (
        Translation("agent.image_scale", 255.0),
        Translation("agent.image_scale", 1.0),
    ),
    "track": (
        "track=True is not a setting here; write logging.wandb.mode=online (and "
        "logging.wandb.project=NAME) for `metta train` or `Trainer`",
        Translation("trainer.logging.wandb.mode", "off"),
    ),
    "use_sde": (
        "use_sde=True is not a setting here: noise is drawn anew in each step; write std=state for a "
        "deviation that depends on the observation",
        AS_HERE,
    ),
    "clip_vloss": (
        "clip_vloss=True is not a setting here; write vf_clip_coef=0.2, the half-width of the value clip",
        Translation("trainer.ppo.vf_clip_coef", None),
    ),
    "torch_deterministic": (
        AS_HERE,
        "torch_deterministic=False is not a setting here: every run can be repeated; leave it out",
    ),
    "capture_video": (
        "capture_video=True is not a setting here; write replay_interval=20, and `metta replay RUN` plays "
        "or films the episodes",
        AS_HERE,
    ),
    "use_gae": (AS_HERE, "use_gae=False is not a setting here; write gae_lambda=1"),
    "use_lstm": (Translation("agent.core", "lstm"), Translation("agent.core", "none")),
    "use_kl_loss": (_KL, AS_HERE),
}
_BACKGROUND = "trainer.evaluation.background"
EARLIER_NAMES: dict[str, Callable[[Any], Answer]] = {
    f"{group}background": _switch(
        _BACKGROUND,
        Translation("trainer.evaluation.where", "process"),
        Translation("trainer.evaluation.where", "here"),
    )
    for group in ("", "trainer.", "evaluation.", "trainer.evaluation.")
}
"""Settings of older versions, by all their names, which commands, files and saved runs may still have."""
SWITCHES = frozenset({*_SWITCHES, *EARLIER_NAMES})
"""Foreign settings that are true or false."""

FOREIGN_NAMES: dict[str, Callable[[Any], Answer]] = {
    **EARLIER_NAMES,
    **{name: _switch(name, *answers) for name, answers in _SWITCHES.items()},
    "net_arch": _net_arch,
    "fcnet_hiddens": _net_arch,
    "tensorboard_log": _tensorboard_log,
    "train_batch_size": _train_batch_size,
    "callback": _instead(_HOOKS),
    "callbacks": _instead(_HOOKS),
    "kl_coeff": _instead(_KL),
    "kl_target": _instead(_KL),
    "num_gpus": lambda value: Translation(
        "trainer.device", "cpu" if _text(value) == "0" else "auto"
    ),
    "lstm_cell_size": _instead("lstm_cell_size is not a setting here; write hidden_size=128"),
    "num_envs_per_env_runner": _instead(
        "num_envs_per_env_runner is not a setting here; write num_envs, the number of all environments"
    ),
    "losses": _instead(
        "losses is not a setting here; write PPOTrainer(..., custom_losses=[my_loss]), in Python"
    ),
    **{name: _instead(_EVALUATION.format(name)) for name in ("eval_freq", "evaluation_interval")},
    "n_eval_episodes": _instead("n_eval_episodes is not a setting here; write eval_episodes=20"),
    "rollout_buffer_class": _instead(
        "rollout_buffer_class is not a setting here; override PPOTrainer.collect_rollouts"
    ),
    "stats_window_size": _instead(
        "stats_window_size is not a setting here: episode_return is the mean of the last 100 episodes"
    ),
    "policy_kwargs": _policy_kwargs,
    "norm_reward": _norm_reward,
}
"""Name elsewhere -> the answer to its value. Mere spellings are in `metta.train.ALIASES`."""


_SCHEDULES = {
    "trainer.optimizer.learning_rate": "learning_rate=3e-4 and lr_schedule='linear'",
    "trainer.ppo.clip_coef": "clip_coef=0.2 and clip_schedule='linear'",
    "trainer.ppo.ent_coef": "ent_coef=0.01 and ent_schedule='linear'",
}


def translate(name: str, value: Any) -> Answer | None:
    """The answer to a setting of another library; None if the name is not one of them."""
    return FOREIGN_NAMES[name](value) if name in FOREIGN_NAMES else None


def advice_for(path: str, value: Any) -> Answer | None:
    """The answer to a value that other libraries allow in the setting at `path`, and metta does not."""
    if path == "trainer.verbose" and value in (2, "2"):
        return Translation(path, True)
    text = value if isinstance(value, str) else ""
    if path == "trainer.logging.wandb.mode" and text.lower() == "disabled":
        return Translation(path, "off")
    if path == "trainer.ppo.ent_coef" and text.startswith("auto"):
        return (
            f"{path}: found {shown(value)}, which is for SAC; allowed is a number of at least 0: write "
            "ent_coef=0.01, and ent_schedule=linear to lower it over the run"
        )
    if path == "trainer.seed" and is_nothing(value):
        return (
            f"{path}: found {shown(value)}, but every run can be repeated; leave it out for the default, "
            "or write seed=random.randrange(2**31) for another one each time"
        )
    if path in _SCHEDULES and callable(value):
        return (
            f"{path}: found a function; allowed are its first value and a named schedule: write "
            f"{_SCHEDULES[path]} (or 'cosine')"
        )
    return None
