"""Thousands of configurations that nobody would write: an explained error, or a config; nothing else."""

import math
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metta.errors import ConfigError
from metta.train.layers import resolve
from metta.train.parsing.schema import Leaf, groups_of, leaves_of
from metta.train.parsing.yaml_text import dump_yaml
from metta.train.settings import ALIASES, build_config, setting_paths
from metta.train.train_config import TrainingConfig
from metta.train.wrappers import WRAPPERS_PATH

LEAVES, GROUPS = leaves_of(TrainingConfig), groups_of(TrainingConfig)
MANY = settings(max_examples=250, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=100, suppress_health_check=list(HealthCheck))

PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4)


def limits(leaf: Leaf) -> dict[str, Any]:
    """Bounds of a field for hypothesis."""
    found: dict[str, Any] = {}
    for bound in leaf.bounds:
        if isinstance(bound, Ge | Gt):
            found["min_value"] = bound.ge if isinstance(bound, Ge) else bound.gt
            found["exclude_min"] = isinstance(bound, Gt)
        elif isinstance(bound, Le | Lt):
            found["max_value"] = bound.le if isinstance(bound, Le) else bound.lt
            found["exclude_max"] = isinstance(bound, Lt)
    return found


def legal(leaf: Leaf) -> st.SearchStrategy[Any]:
    """Every value that a field takes."""
    bounds = limits(leaf)
    whole = {name: value for name, value in bounds.items() if not name.startswith("exclude")}
    text = st.text(min_size=1, max_size=6, alphabet=st.characters(exclude_categories=["Cs"]))
    if leaf.path == WRAPPERS_PATH:
        text = st.sampled_from(["TimeLimit(max_episode_steps=5)", "SignReward()"])
    made: st.SearchStrategy[Any] = {
        bool: st.booleans(),
        int: st.integers(**whole),
        float: st.floats(allow_nan=False, allow_infinity=False, **bounds),
        str: st.sampled_from(leaf.choices) if leaf.choices else text,
        tuple: st.lists(text, max_size=3).map(tuple),
        dict: st.dictionaries(text, PLAIN | st.lists(PLAIN, max_size=2), max_size=3),
    }[leaf.kind]
    return st.none() | made if leaf.optional else made


VALID = st.fixed_dictionaries({path: legal(leaf) for path, leaf in LEAVES.items()}).map(
    # groups and shards of equal size, and where they are collected, are the rules over several fields
    lambda values: (
        values
        | {"trainer.rollout.num_groups": 1, "trainer.rollout.num_shards": 1}
        | {"trainer.system.num_processes": 1, "trainer.collect.num_actors": 0}
        | {"trainer.collect.kind": "here", "trainer.collect.address": None}
        | {"trainer.collect.overlap": False}
    )
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.just(5000).map(lambda digits: 10**digits)
    | st.sampled_from(["1e999", "-0", "nan", "{", "[a", "null", "off", "\ud800", math.nan, object(), b"x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    | st.dictionaries(st.sampled_from(list(GROUPS)), inner, max_size=1),
    max_leaves=4,
)  # fmt: skip
NAMES = st.sampled_from([*LEAVES, *GROUPS, *ALIASES, *setting_paths(), "name", "gama"])
ANY_NAME = NAMES | st.text(max_size=8) | st.tuples(NAMES, st.text(max_size=3)).map(".".join)
SETTINGS = st.dictionaries(ANY_NAME, JUNK, max_size=4) | st.dictionaries(
    st.sampled_from(["agent", "trainer", "ppo"]),
    st.dictionaries(ANY_NAME, JUNK, max_size=3),
    max_size=3,
)


def check_message(error: ConfigError, *names: str) -> None:
    """The message has one of these paths in it, as it is or shortened as values are."""
    message = str(error)
    assert any(name in message or repr(name)[1:9] in message for name in names), message


def names_in(mapping: Any, prefix: str = "") -> list[str]:
    if not isinstance(mapping, dict):
        return []
    found = [f"{prefix}{key}" for key in mapping]
    return found + [n for key, value in mapping.items() for n in names_in(value, f"{prefix}{key}.")]


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(VALID)
def test_nothing_is_lost_when_a_random_config_goes_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    config = build_config(values, given=values)
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(dump_yaml(config.to_dict()))
    assert TrainingConfig.from_dict(config.to_dict()) == config
    assert TrainingConfig.from_yaml(path) == config


@MANY
@given(SETTINGS)
def test_only_config_errors_with_a_path_come_when_a_mapping_is_junk(
    mapping: dict[str, Any],
) -> None:
    try:
        config = TrainingConfig.from_dict(mapping)
    except ConfigError as error:
        check_message(error, *LEAVES, *GROUPS, *names_in(mapping))
    else:
        assert isinstance(config, TrainingConfig)


@MANY
@given(st.data())
def test_only_config_errors_with_the_path_come_when_one_value_is_junk(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(LEAVES)))
    value = data.draw(JUNK)
    try:
        TrainingConfig.from_dict({path: value})
    except ConfigError as error:
        check_message(error, path)


@SOME
@given(
    st.lists(
        st.tuples(ANY_NAME, st.sampled_from([":", ": ", " "]), st.text(max_size=8)).map("".join)
        | st.sampled_from(["trainer:", "  ppo:", "    gamma: 2", "- a", "&a", "*a", "{", "? x", "%YAML"]),
        max_size=5,
    )
)  # fmt: skip
def test_only_config_errors_with_the_file_come_when_yaml_is_junk(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.yaml"
    path.write_text("\n".join(lines), errors="surrogatepass")
    try:
        TrainingConfig.from_yaml(path)
    except ConfigError as error:
        check_message(error, str(path))


@SOME
@given(
    st.lists(
        st.tuples(ANY_NAME, st.text(max_size=8)).map("=".join) | st.text(max_size=9), max_size=3
    )
)
def test_only_config_errors_come_when_a_command_line_is_junk(pairs: list[str]) -> None:
    try:
        resolve("cartpole", [], pairs)
    except ConfigError as error:
        names = [pair.partition("=")[0].replace("-", "_") for pair in pairs]
        check_message(error, *LEAVES, *GROUPS, *names, *(repr(pair)[1:6] for pair in pairs))


def test_paths_are_kept_apart_when_a_file_is_named_by_a_path() -> None:
    with pytest.raises(ConfigError, match="no/such"):
        resolve(None, [Path("no/such.yaml")])
