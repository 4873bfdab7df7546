"""The page of interfaces names what exists, and leaves nothing public out."""

import importlib
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import metta
from metta.rl.training_state import On, PolicyTracker, StatsTracker, TrainerState, fields_on
from metta.train import presets

PAGE = Path(__file__).parents[1] / "docs" / "interfaces.md"
COVERED = [
    "metta",
    "metta.rl.components",
    "metta.rl.functional_trainer",
    "metta.rl.hooks",
    "metta.rl.training_state",
    "metta.train.train_config",
    "metta.train.presets",
    "metta.doctor",
    "metta.testing",
    "metta.profiling",
]


def words_of(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def dotted_names(text: str) -> list[str]:
    return sorted({word for word in words_of(text) if re.fullmatch(r"metta(\.\w+)+", word)})


def resolve_name(dotted: str) -> Any:
    """The module, class, function, method or property that a dotted name leads to."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


def missing_names(module: ModuleType, text: str) -> set[str]:
    """Public names of a module that a page does not have in backticks."""
    words = words_of(text)
    if module is metta:  # other modules have names of the same classes: it needs rows of its own
        return {name for name in module.__all__ if f"metta.{name}" not in words}
    known = {word.rpartition(".")[2] for word in words}
    return {name for name in module.__all__ if name not in known}


def unresolved(names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            resolve_name(name)
        except (AttributeError, ModuleNotFoundError):
            found.append(name)
    return found


def test_every_name_on_the_page_resolves() -> None:
    names = dotted_names(PAGE.read_text())
    assert len(names) > 200
    assert unresolved(names) == []
    assert unresolved(
        ["metta.rl.hooks.TrainerHook", "metta.rl.hooks.TrainerHookk", "mettaa.rl"]
    ) == [
        "metta.rl.hooks.TrainerHookk",
        "mettaa.rl",
    ]


def test_the_page_has_every_public_name() -> None:
    page = PAGE.read_text()
    missing = {name: missing_names(importlib.import_module(name), page) for name in COVERED}
    assert {name: names for name, names in missing.items() if names} == {}


def test_presets_are_found_in_the_module_of_configurations_when_the_page_says_so() -> None:
    config_module = importlib.import_module("metta.train.train_config")
    for name in presets.__all__:
        assert getattr(config_module, name) is getattr(presets, name)


def test_a_missing_name_is_noticed_when_its_row_is_removed() -> None:
    for module_name in COVERED:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            shortened = re.sub(rf"`[^`\n]*\b{name}`", "", PAGE.read_text())
            assert name in missing_names(module, shortened)


def test_two_names_are_one_thing_when_the_page_says_that_they_are_the_same() -> None:
    same = [
        ("metta.rl.components.Trainer", "metta.rl.clean_trainer.Trainer"),
        ("metta.rl.components.Trainer", "metta.Trainer"),
        ("metta.rl.trainer.train", "metta.rl.trainer_component.train"),
        (
            "metta.rl.resume.checkpointer.CheckpointManager",
            "metta.rl.resume.checkpointer.TrainingCheckpointer",
        ),
        ("metta.Policy", "metta.agent.metta_agent.PolicyAgent"),
        ("metta.RolloutBuffer", "metta.rl.collect.buffer.Experience"),
    ]
    for first, second in same:
        assert resolve_name(first) is resolve_name(second)


def test_the_page_says_what_fields_hold_on_ranks() -> None:
    header, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().partition("| container |")[2].splitlines()[:5]
    )
    kinds = [kind for kind in header if kind]
    assert kinds == [kind.value for kind in On]
    said = {
        name.strip("`"): dict(zip(kinds, map(words_of, cells), strict=True))
        for name, *cells in lines
    }
    assert said.keys() == {"TrainerState", "StatsTracker", "PolicyTracker"}
    for container in (TrainerState, StatsTracker, PolicyTracker):
        found = fields_on(container)
        left_out = {field.name for field in fields(container)} - found.keys()
        assert left_out == ({"stats", "policies"} if container is TrainerState else set())
        assert said[container.__name__] == {
            kind.value: [name for name, on in found.items() if on is kind] for kind in On
        }
