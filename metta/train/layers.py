"""Defaults, a preset, files and the command line as one configuration, with the origin of each value."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metta.errors import ConfigError
from metta.secrets import scrub_all
from metta.train.parsing.field_docs import setting_docs
from metta.train.parsing.origins import COMMAND_LINE, DEFAULT, Origin
from metta.train.parsing.problems import Problem, as_error, of_rule, shown
from metta.train.parsing.schema import leaves_of
from metta.train.parsing.values import Text, plain_data
from metta.train.parsing.yaml_text import parse_settings, read_inline, read_settings
from metta.train.presets import find_preset
from metta.train.recipes import Applied
from metta.train.rules import size_rules
from metta.train.settings import (
    Entry,
    build_config,
    entries_of,
    given_paths,
    group_path,
    leaf_at,
    place_entries,
    setting_paths,
    setting_values,
    unknown_setting,
)
from metta.train.train_config import TrainingConfig
from metta.train.wrappers import WRAPPERS_PATH

__all__ = [
    "PRESET_ORIGIN",
    "RECIPE_ORIGIN",
    "Origin",
    "Resolved",
    "config_from_mapping",
    "keep_origins",
    "resolve",
    "with_recipe_origins",
]

PRESET_ORIGIN = "preset "
"""How the origin of a setting begins that a preset has set."""
RECIPE_ORIGIN = "recipe "
"""How the origin of a setting begins that follows a recipe."""

History = list[tuple[Any, Origin]]
"""Values of one setting, from the default on; the last one counts."""


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A configuration, and the origin of each of its settings.

    resolved = resolve("cartpole", [Path("my.yaml")], ["lr=1e-3"])
    print(resolved.explain("lr"))
    """

    config: TrainingConfig
    history: Mapping[str, History]
    """Path -> every value that a layer gave it, lowest layer first, as it was written."""
    files: Mapping[str, str]
    """File -> SHA-256 of what was read."""

    @property
    def origins(self) -> dict[str, Origin]:
        """Path -> where its value comes from."""
        return {path: steps[-1][1] for path, steps in self.history.items()}

    def with_recipe(self, applied: Applied | None) -> "Resolved":
        """The same with the settings of a recipe between defaults and everything that was chosen."""
        if applied is None:
            return self
        history = dict(self.history)
        for path, value in applied.values.items():
            history[path] = [*history[path], (value, _recipe_origin(applied, path))]
        return dataclasses.replace(self, config=applied.config, history=history)

    def paths_below(self, name: str) -> list[str]:
        """The setting of this name, or the settings of the group of this name."""
        path = setting_paths().get(name)
        if path is not None:
            return [path]
        group = group_path(name)
        if group is None:
            raise as_error([unknown_setting(Entry(name, None, None))])
        return [path for path in self.history if not group or path.startswith(f"{group}.")]

    def explain(self, name: str) -> str:
        """A setting's value, its origin, what it overrode, and what is allowed.

        A group explains all of its settings.
        """
        return "\n\n".join(self._explain_one(path) for path in self.paths_below(name))

    def _explain_one(self, path: str) -> str:
        leaf, steps = leaf_at(path), self.history[path]
        value = setting_values(self.config)[path]
        lines = [f"{path} = {shown(value)}", f"  set by: {steps[-1][1]}"]
        lines += [f"  overrides: {shown(old)} ({origin})" for old, origin in reversed(steps[:-1])]
        return "\n".join(
            [
                *lines,
                f"  meaning: {' '.join(setting_docs(TrainingConfig)[path].split())}",
                f"  allowed: {leaf.words}",
                f"  default: {shown(leaf.default)}",
            ]
        )

    def provenance(self) -> dict[str, Any]:
        """Every setting with its value, its origin and what it overrode, as JSON-ready data.

        Overridden values were not checked for secrets; they are scrubbed here.
        """
        values = setting_values(self.config)
        found = {
            "settings": {
                path: {
                    "value": plain_data(values[path], path),
                    "origin": str(steps[-1][1]),
                    "overrides": [
                        {"value": plain_data(value, path), "origin": str(origin)}
                        for value, origin in reversed(steps[:-1])
                    ],
                }
                for path, steps in self.history.items()
            },
            "files": dict(self.files),
        }
        scrubbed: dict[str, Any] = scrub_all(found)
        return scrubbed


def resolve(
    preset: str | TrainingConfig | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    check_sizes: bool = True,
) -> Resolved:
    """Apply files, in order, and then overrides to a preset; all problems are in one `ConfigError`.

    `preset` is a name, a Gymnasium id, a configuration, or None for the defaults. Overrides are
    ``name=value`` texts or a mapping. With `check_sizes`, sizes must also fit an environment by id and the
    agent of the configuration; turn it off for your own environments or policies.
    """
    problems: list[Problem] = []
    history: dict[str, History] = {
        path: [(leaf.default, DEFAULT)] for path, leaf in leaves_of(TrainingConfig).items()
    }
    digests: dict[str, str] = {}
    layers = [_preset_layer(preset, problems)]
    layers += [_file_layer(file, problems, digests) for file in files]
    layers.append(_override_layer(overrides, problems))
    for layer in layers:
        for path, entry in layer.items():
            history[path].append((entry.value, entry.origin or COMMAND_LINE))
    values = {path: steps[-1][0] for path, steps in history.items()}
    origins = {path: steps[-1][1] for path, steps in history.items()}
    given = {path for path, steps in history.items() if len(steps) > 1}
    config = build_config(values, origins, problems, given=given)
    broken = size_rules(config) if check_sizes else []
    if broken:
        raise as_error([of_rule(rule, origins) for rule in broken])
    return Resolved(config, history, digests)


def keep_origins(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a run that resumes: as stored, except for settings that have other values now.

    Other stored entries are kept too, such as the policy that a fine-tuned run began with.
    """
    before = stored.get("settings")
    known = before if isinstance(before, Mapping) else {}
    settings = {
        path: known[path]
        if isinstance(known.get(path), Mapping) and known[path].get("value") == about["value"]
        else about
        for path, about in fresh["settings"].items()
    }
    return {**stored, **fresh, "settings": settings}


def with_recipe_origins(provenance: Mapping[str, Any], applied: Applied) -> dict[str, Any]:
    """The provenance of a run whose open settings follow a recipe."""
    settings = dict(provenance["settings"])
    for path, value in applied.values.items():
        before = {key: settings[path][key] for key in ("value", "origin")}
        settings[path] = {
            "value": plain_data(value, path),
            "origin": str(_recipe_origin(applied, path)),
            "overrides": [before, *settings[path]["overrides"]],
        }
    return {**provenance, "settings": settings}


def _recipe_origin(applied: Applied, path: str) -> Origin:
    return Origin(f"{RECIPE_ORIGIN}{applied.recipe.name}: {applied.reason(path)}")


def config_from_mapping(settings: Mapping[str, Any]) -> TrainingConfig:
    """A configuration from nested or flat settings, over the defaults."""
    if not isinstance(settings, Mapping):
        raise ConfigError(f"config: found {shown(settings)}; allowed is a mapping of settings")
    problems: list[Problem] = []
    placed = place_entries(entries_of(settings), problems)
    defaults = {path: leaf.default for path, leaf in leaves_of(TrainingConfig).items()}
    values = defaults | {path: entry.value for path, entry in placed.items()}
    return build_config(values, None, problems, given=placed.keys())


Layer = Mapping[str, Entry]


def _preset_layer(preset: str | TrainingConfig | None, problems: list[Problem]) -> Layer:
    if preset is None:
        return {}
    if isinstance(preset, TrainingConfig):
        return _changes(preset, Origin("base config"))
    try:
        name, config = find_preset(preset)
    except ConfigError as error:
        problems.append(Problem(str(error)))
        return {}
    # the name of an environment without a preset sets nothing else
    return _changes(config, Origin(f"{PRESET_ORIGIN}{name}") if name else COMMAND_LINE)


def _changes(config: TrainingConfig, origin: Origin) -> Layer:
    values = setting_values(config)
    return {path: Entry(path, values[path], origin) for path in given_paths(config)}


def _file_layer(path: Path, problems: list[Problem], digests: dict[str, str]) -> Layer:
    try:
        content = read_settings(path)
        settings = parse_settings(content, path)
    except ConfigError as error:
        problems.append(Problem(str(error)))
        return {}
    digests[str(path)] = hashlib.sha256(content).hexdigest()
    return place_entries(entries_of(settings, Origin(str(path))), problems)


def _override_layer(overrides: Mapping[str, Any] | Sequence[str], problems: list[Problem]) -> Layer:
    if isinstance(overrides, Mapping):
        return place_entries(entries_of(overrides, COMMAND_LINE), problems)
    entries: dict[str, Entry] = {}
    for pair in overrides:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            problems.append(
                Problem(
                    f"{shown(pair)} is not a setting; write NAME=VALUE, e.g. learning_rate=1e-3"
                )
            )
            continue
        name = name.replace("-", "_")
        entries[name] = Entry(name, _inline(name, text, problems), COMMAND_LINE)
    return place_entries(entries.values(), problems)


def _inline(name: str, text: str, problems: list[Problem]) -> Any:
    """Lists and mappings are read as YAML; for every other setting the text is used as it is."""
    path = setting_paths().get(name)
    if path is None or leaf_at(path).kind not in (tuple, dict):
        return Text(text, text, quoted=False)
    if path == WRAPPERS_PATH and "{" not in text:  # arguments in brackets are not YAML
        return text.strip().removeprefix("[").removesuffix("]")
    try:
        return read_inline(text)
    except ConfigError as error:
        problems.append(Problem(f"{path}: {error}"))
        return leaf_at(path).default
