"""Settings of other libraries that are no mere spelling: the one here with its value, or what to write."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metta.train.parsing.problems import shown
from metta.train.parsing.values import is_nothing

__all__ = ["FOREIGN_NAMES", "Translation", "advice_for", "translate"]

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Translation(NamedTuple):
    """A setting of metta that means exactly the same."""

    path: str
    value: Any


Answer = Translation | str
"""The same setting here, or the text of the problem, which says what to write instead."""


def _switch(name: str, yes: Answer, no: Answer) -> Callable[[Any], Answer]:
    """The answers to a boolean setting of this name."""

    def answer(value: Any) -> Answer:
        text = str(value).lower()
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


FOREIGN_NAMES: dict[str, Callable[[Any], Answer]] = {
    "anneal_lr": _switch(
        "anneal_lr",
        Translation("trainer.optimizer.schedule", "linear"),
        Translation("trainer.optimizer.schedule", "constant"),
    ),
    "cuda": _switch(
        "cuda", Translation("trainer.device", "auto"), Translation("trainer.device", "cpu")
    ),
    "normalize_images": _switch(
        "normalize_images",
        Translation("agent.image_scale", 255.0),
        Translation("agent.image_scale", 1.0),
    ),
    "track": _switch(
        "track",
        "track=True is not a setting here; write logging.wandb.mode=online (and "
        "logging.wandb.project=NAME) for `metta train` or `Trainer`",
        Translation("trainer.logging.wandb.mode", "off"),
    ),
    "net_arch": _net_arch,
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


def advice_for(path: str, value: Any) -> str | None:
    """What to write for a value that other libraries allow in the setting at `path`, and metta does not."""
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
