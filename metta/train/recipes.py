"""Recipes: settings that follow from what an environment is, where nobody has chosen them.

A recipe is a list of settings, each with its reason. Which one applies follows from the spaces of the
environment, never from its name. What was chosen by keyword, file, command line or preset stays.
Each number names its source. ``benchmarks/first_try`` compares recipes with Stable-Baselines3's defaults on
environments of eleven families.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from metta.train.settings import apply_settings, given_paths
from metta.train.train_config import TrainingConfig

__all__ = [
    "RECIPES",
    "Applied",
    "Choice",
    "EnvFacts",
    "ObservationKind",
    "Recipe",
    "lacks_choices",
    "recipe_for",
    "with_recipe",
]

ObservationKind = Literal["vector", "states", "codes", "image"]
"""Numbers; one of a few states; a grid of object codes or bits; pixels of a camera or a screen."""


@dataclass(frozen=True)
class EnvFacts:
    """What recipes read of an environment."""

    observation: ObservationKind
    is_continuous: bool
    """Whether actions are real numbers."""
    rows: int
    """Agents that step together, over all environments."""
    agents: int = 1
    """Agents in each environment."""
    largest_code: int = 255
    """Largest number in grids of codes, as declared or as seen in a short probe."""
    action_reach: float = 1.0
    """Half of the range of continuous actions."""

    def describe(self) -> str:
        """E.g. ``continuous actions, observations of numbers``."""
        seen = {
            "vector": "numbers",
            "states": "a few states",
            "codes": f"a small grid of codes up to {self.largest_code}",
            "image": "images",
        }
        actions = "continuous actions" if self.is_continuous else "discrete actions"
        many = f", {self.agents} agents" if self.agents > 1 else ""
        return f"{actions}, observations of {seen[self.observation]}{many}"


class Choice(NamedTuple):
    """One setting of a recipe."""

    path: str
    value: Any
    """The value, or a function of the facts and of the batch in samples."""
    reason: str


@dataclass(frozen=True)
class Recipe:
    """Settings for one kind of environment."""

    name: str
    choices: tuple[Choice, ...]


_LEAST_STEPS, _LEAST_STEPS_TOGETHER = 64, 256


def _horizon_of(samples: int) -> Callable[[EnvFacts, int], int]:
    """Steps that make so many samples of all rows together, as a power of two.

    At least 64, and 256 where agents share a world: what they see in one step is nearly the same.
    """

    def horizon(facts: EnvFacts, _: int) -> int:
        least = _LEAST_STEPS if facts.agents == 1 else _LEAST_STEPS_TOGETHER
        return 1 << (max(least, samples // facts.rows).bit_length() - 1)

    return horizon


def _minibatches_of(samples: int, most: int | None = None) -> Callable[[EnvFacts, int], int]:
    """Minibatches of so many samples; of more where that would make more than `most` of them."""

    def count(_: EnvFacts, batch: int) -> int:
        found = max(1, batch // samples)
        return found if most is None else min(most, found)

    return count


def _half_of_reach(facts: EnvFacts, _: int) -> float:
    log_std = math.log(0.5 * facts.action_reach)
    return round(min(2.0, max(-5.0, log_std)), 2)


_BATCH = Choice(
    "trainer.rollout.horizon", _horizon_of(1024),
    "1024 samples per update, half of Schulman et al. 2017: twice as many updates learn more in short runs "
    "(benchmarks/first_try); at least 256 steps where several agents share a world",
)  # fmt: skip
_SMALL_MINIBATCHES = Choice(
    "trainer.ppo.num_minibatches", _minibatches_of(64),
    "minibatches of about 64, as in Schulman et al. 2017 and Stable-Baselines3",
)  # fmt: skip
_TEN_PASSES = Choice(
    "trainer.ppo.update_epochs", 10, "as in Schulman et al. 2017 and Stable-Baselines3"
)
_LINEAR = Choice(
    "trainer.optimizer.schedule", "linear",
    "steps that shrink to 0 end on a better policy (Andrychowicz et al. 2021; Huang et al. 2022)",
)  # fmt: skip
_RATE = Choice(
    "trainer.optimizer.learning_rate", 3e-4, "as in Schulman et al. 2017 and Stable-Baselines3"
)
_PASSES = (_SMALL_MINIBATCHES, _TEN_PASSES, _RATE)
_KL_STEPS = Choice(
    "trainer.optimizer.schedule", "adaptive_kl",
    "steps of a size that moves the policy by a KL of about 0.01, however long the run is (Rudin et al. "
    "2021)",
)  # fmt: skip
_RETURNS = Choice(
    "agent.normalize_returns", True, "rewards of any scale: values are learnt in their own units"
)

RECIPES: dict[str, Recipe] = {
    "continuous control": Recipe(
        "continuous control",
        (
            _BATCH,
            *_PASSES,
            _KL_STEPS,
            Choice(
                "agent.log_std_init", _half_of_reach,
                "half the reach of actions: most first actions lie inside of their bounds, and small first "
                "deviations learn faster (Andrychowicz et al. 2021)",
            ),
            Choice(
                "agent.normalize_observations", True,
                "sensors differ by orders of magnitude (Andrychowicz et al. 2021)",
            ),
            _RETURNS,
        ),
    ),
    "discrete control": Recipe("discrete control", (_BATCH, *_PASSES, _KL_STEPS, _RETURNS)),
    "states": Recipe("states", (_BATCH, *_PASSES, _RETURNS)),
    "codes": Recipe(
        "codes",
        (
            _BATCH,
            *_PASSES,
            _RETURNS,
            Choice(
                "agent.image_scale", lambda facts, _: float(max(1, facts.largest_code)),
                "codes are no brightness: dividing them by 255 would hide them",
            ),
        ),
    ),
    "images": Recipe(
        "images",
        (
            Choice(
                "trainer.rollout.horizon", _horizon_of(1024),
                "1,024 samples per update, as in Schulman et al. 2017 (Atari)",
            ),
            Choice(
                "trainer.ppo.num_minibatches", _minibatches_of(64, most=16),
                "minibatches of 64, as in Stable-Baselines3, for four times the steps of the 256 of "
                "Schulman et al. 2017 (Atari); at most 16, so that more environments make them larger",
            ),
            Choice(
                "trainer.ppo.update_epochs", 10,
                "as in Stable-Baselines3: 4 passes, as in CleanRL (Atari), learn less in short runs "
                "(benchmarks/first_try); update_epochs=4 takes less time where steps are cheap",
            ),
            Choice(
                "trainer.ppo.clip_coef", 0.2,
                "as in Stable-Baselines3: the 0.1 of Schulman et al. 2017 (Atari) holds an update to a "
                "KL of 0.002 even with 10 passes (Breakout)",
            ),
            Choice("trainer.ppo.ent_coef", 0.01, "as in Schulman et al. 2017 (Atari)"),
            Choice(
                "trainer.optimizer.learning_rate", 5e-4,
                "twice that of Schulman et al. 2017 (Atari), which hardly moves a policy in short runs; it "
                "shrinks to 0",
            ),
            _LINEAR,
            Choice("agent.hidden_size", 512, "as in Mnih et al. 2015"),
            _RETURNS,
        ),
    ),
}  # fmt: skip
"""Recipes by name."""


def recipe_for(facts: EnvFacts) -> Recipe:
    """The recipe for an environment of these facts."""
    if facts.observation == "image":
        return RECIPES["images"]
    if facts.is_continuous:
        return RECIPES["continuous control"]
    return RECIPES[facts.observation if facts.observation != "vector" else "discrete control"]


class Applied(NamedTuple):
    """A configuration with a recipe in it."""

    config: TrainingConfig
    recipe: Recipe
    facts: EnvFacts
    values: Mapping[str, Any]
    """Path -> value of the settings that follow the recipe."""

    def describe(self) -> str:
        """One line: the recipe, why it applies, and what it set."""
        return (
            f"recipe {self.recipe.name!r} ({self.facts.describe()}) sets {len(self.values)} settings; "
            "`metta config ENV --origins` (in Python: trainer.recipe.values) lists them, recipe=none "
            "leaves them out"
        )

    def reason(self, path: str) -> str:
        """Why a setting has its value."""
        return next(choice.reason for choice in self.recipe.choices if choice.path == path)


def lacks_choices(config: TrainingConfig) -> bool:
    """Whether any recipe would set something."""
    paths = {choice.path for recipe in RECIPES.values() for choice in recipe.choices}
    return config.trainer.recipe == "auto" and not paths <= given_paths(config)


def with_recipe(
    config: TrainingConfig, facts: EnvFacts, frozen: Mapping[str, Any] = MappingProxyType({})
) -> Applied | None:
    """The configuration with the settings of the environment's recipe that were not chosen.

    A run keeps the values that its recipe had when it began: they are in `frozen`, by path.
    None if nothing is left to set, or if the configuration wants no recipe.
    """
    if not lacks_choices(config):
        return None
    recipe, chosen = recipe_for(facts), given_paths(config)
    open_choices = [choice for choice in recipe.choices if choice.path not in chosen]
    if not open_choices:
        return None
    values: dict[str, Any] = {}
    for choice in open_choices:
        horizon = values.get("trainer.rollout.horizon", config.trainer.rollout.horizon)
        batch = horizon * facts.rows
        value = choice.value(facts, batch) if callable(choice.value) else choice.value
        values[choice.path] = frozen.get(choice.path, value)
    return Applied(apply_settings(config, values), recipe, facts, values)
