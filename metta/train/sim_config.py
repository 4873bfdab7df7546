"""Settings of simulations: what a policy is evaluated on, by name, and suites of them from a file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Gt, Le
from pydantic import model_validator

from metta.errors import ConfigError, did_you_mean
from metta.train.parsing.fields import Count, Name, Positive, config_class
from metta.train.parsing.problems import BrokenRule, raise_broken, shown
from metta.train.parsing.schema import leaves_of
from metta.train.parsing.values import is_nothing, plain_data, read_value
from metta.train.parsing.yaml_text import read_yaml

__all__ = ["SUITES", "SimulationConfig", "SimulationSuiteConfig", "find_suite", "read_suite"]

_FILES = (".yaml", ".yml")
_Config = TypeVar("_Config")


@config_class
class SimulationConfig:
    """Episodes of one environment, and the policies that play in them."""

    env: Name | None = None
    """Gymnasium id of the environment; None: the task that is trained on."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment."""
    num_episodes: Count | None = None
    """Number of episodes, the earliest started ones; None: the number that the evaluation asks for."""
    max_seconds: Positive | None = None
    """Time after which a simulation ends with the episodes that are finished; None: no limit."""
    npc_policy_uri: Name | None = None
    """The policy that plays the other agents, e.g. ``first:best``."""
    policy_agents_pct: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the agents of each environment that the evaluated policy plays: the first ones."""
    greedy: bool = False
    """Take the likeliest action instead of a sample."""

    @model_validator(mode="after")
    def _shares_agents(self) -> "SimulationConfig":
        raise_broken(_share_rules(self))
        return self


def _share_rules(config: SimulationConfig) -> list[BrokenRule]:
    share, npc = config.policy_agents_pct, config.npc_policy_uri
    paths = ("policy_agents_pct", "npc_policy_uri")
    if share < 1.0 and npc is None:
        text = f"the evaluated policy plays {share:g} of the agents; name the policy of the others"
        return [BrokenRule(paths, f"{text} as npc_policy_uri, or leave policy_agents_pct at 1")]
    if share == 1.0 and npc is not None:
        text = f"npc_policy_uri={shown(npc)} is given, but policy_agents_pct=1 leaves it no agent"
        return [BrokenRule(paths, f"{text}; try policy_agents_pct=0.5, or leave the uri out")]
    return []


@config_class
class SimulationSuiteConfig:
    """Simulations by name; the score of a category is the mean of its simulations."""

    name: Name = "suite"
    """Of the suite."""
    simulations: dict[str, SimulationConfig] = dataclasses.field(default_factory=dict)
    """``category/simulation`` -> what is played there."""
    skip_unfit: bool = False
    """Leave out simulations whose spaces do not fit the policy, instead of refusing them."""

    @model_validator(mode="after")
    def _named_by_category(self) -> "SimulationSuiteConfig":
        raise_broken(
            [
                BrokenRule(
                    ("simulations",),
                    f"the name {shown(name)} has no category; name simulations category/simulation, "
                    "e.g. classic/cartpole",
                )
                for name in self.simulations
                if not all(name.partition("/"))
            ]
        )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in a file."""
        data: dict[str, Any] = plain_data(self)
        return data


def _classic() -> SimulationSuiteConfig:
    ids = {
        "cartpole": "CartPole-v1",
        "acrobot": "Acrobot-v1",
        "mountain_car": "MountainCar-v0",
        "mountain_car_continuous": "MountainCarContinuous-v0",
        "pendulum": "Pendulum-v1",
    }
    simulations = {f"classic/{name}": SimulationConfig(env=env) for name, env in ids.items()}
    return SimulationSuiteConfig(name="classic", simulations=simulations, skip_unfit=True)


def _grid() -> SimulationSuiteConfig:
    tasks = ("gather", "maze", "rooms", "crowd")
    simulations = {f"grid/{task}": SimulationConfig(env=f"grid/{task}") for task in tasks}
    return SimulationSuiteConfig(name="grid", simulations=simulations, skip_unfit=True)


SUITES: dict[str, SimulationSuiteConfig] = {"classic": _classic(), "grid": _grid()}
"""Suites by name. A policy plays those of their simulations that fit its spaces."""


def find_suite(name: str) -> SimulationSuiteConfig:
    """The suite of this name, or of the file of this name."""
    if name in SUITES:
        return SUITES[name]
    if name.endswith(_FILES) or Path(name).is_file():
        return read_suite(Path(name))
    raise ConfigError(
        f"there is no suite {shown(name)}{did_you_mean(name, SUITES)}; suites are {', '.join(SUITES)}, or "
        "the path of a YAML file with `simulations`"
    )


def read_suite(path: Path) -> SimulationSuiteConfig:
    """A suite from a YAML file; problems are named with file and simulation.

        name: mine
        simulations:
          nav/easy: {env: CartPole-v1, num_episodes: 50}

    Without a name it is named after the file.
    """
    settings = read_yaml(path)
    given = settings.pop("simulations", None)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"{path}: found {shown(given)} as simulations; a suite is made of them, e.g. "
            "simulations: {nav/easy: {env: CartPole-v1}}"
        )
    own: dict[str, Any] = {"name": path.stem}
    own |= _read_fields(SimulationSuiteConfig, settings, f"{path}")
    simulations = {}
    for name, fields in given.items():
        where = f"{path}:{getattr(name, 'line', 0)}: simulation {shown(str(name))}"
        if not isinstance(fields, Mapping) and not is_nothing(fields):
            raise ConfigError(f"{where}: found {shown(fields)}; allowed is a mapping of settings")
        read = {} if is_nothing(fields) else _read_fields(SimulationConfig, fields, where)
        simulations[str(name)] = _built(SimulationConfig, where, read)
    return _built(SimulationSuiteConfig, f"{path}", {**own, "simulations": simulations})


def _read_fields(kind: type, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values converted to the types of a class's fields."""
    known = leaves_of(kind)
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"{where}: unknown setting {shown(str(name))}{did_you_mean(name, known)}"
            )
    return {str(name): read_value(known[name], value) for name, value in settings.items()}


def _built(kind: type[_Config], where: str, fields: Mapping[str, Any]) -> _Config:
    try:
        return kind(**fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
