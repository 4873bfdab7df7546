"""`metta config`: the configuration that arguments describe, and where each value was set."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.arguments import resolve_arguments
from metta.cli.options import add_out, add_words, written_file
from metta.cli.tables import say
from metta.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Prints the settings that a run would have as YAML, which `metta train` reads again."
    )
    add_words(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--explain",
        metavar="NAME",
        help="value, origin, meaning and range of a setting, or of a group such as trainer.ppo",
    )
    shape.add_argument(
        "--origins", action="store_true", help="one line per setting, with the origin of its value"
    )
    shape.add_argument(
        "--help-for",
        metavar="GROUP",
        help="what the settings of a group mean, e.g. trainer.ppo; 'all' for the outermost",
    )
    add_out(shape, "write the YAML to a file")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for."""
    if options.help_for is not None:
        say(_help_for(options.help_for))
        return 0
    if options.explain is not None and not options.words:
        from metta.train.layers import resolve

        say(resolve(None).explain(options.explain))  # of no run: the default
        return 0
    resolved = _with_recipe(resolve_arguments(options.words))
    if options.explain is not None:
        say(resolved.explain(options.explain))
    elif options.origins:
        say(_origins(resolved))
    elif options.out is not None:
        say(f"wrote {_write(resolved, written_file(options.out))}")
    else:
        from metta.train.parsing.yaml_text import dump_yaml

        say(dump_yaml(resolved.config.to_dict()), end="")
    return 0


def _with_recipe(resolved: "Resolved") -> "Resolved":
    """The settings that a run would have; environments load only if they matter."""
    from metta.train.recipes import lacks_choices

    if not lacks_choices(resolved.config):
        return resolved
    from metta.cli.recipes import resolved_with_recipe

    return resolved_with_recipe(resolved)


def _write(resolved: "Resolved", path: Path) -> Path:
    try:
        return resolved.config.to_yaml(path)
    except OSError as error:
        raise ConfigError(f"--output {str(path)!r} cannot be written: {error.strerror}") from None


def _origins(resolved: "Resolved") -> str:
    from metta.train.parsing.schema import setting_values

    lines = [f"{path} = {value}" for path, value in setting_values(resolved.config).items()]
    width = max(map(len, lines))
    origins = resolved.origins.values()
    return "\n".join(
        f"{line:<{width}}  # {origin}" for line, origin in zip(lines, origins, strict=True)
    )


def _help_for(name: str) -> str:
    """Settings of one group with type, default and meaning, and the groups below it."""
    from metta.train.parsing.field_docs import setting_docs
    from metta.train.parsing.schema import groups_of, leaves_of
    from metta.train.settings import group_path, setting_paths
    from metta.train.train_config import TrainingConfig

    docs, groups = setting_docs(TrainingConfig), groups_of(TrainingConfig)
    group = group_path("" if name == "all" else name)
    leaves = [leaf for path, leaf in leaves_of(TrainingConfig).items() if _parent(path) == group]
    if group is None:
        path = setting_paths().get(name)
        if path is None:
            hint = did_you_mean(name, [*groups, *setting_paths()])
            raise ConfigError(f"unknown group {name!r}{hint}; groups are {', '.join(groups)}")
        leaves = [leaves_of(TrainingConfig)[path]]
    lines = [f"{group}: {docs[group]}", ""] if group else []
    for leaf in leaves:
        lines += [f"{leaf.path}  (default: {leaf.default!r})", f"    {leaf.words}"]
        lines += [f"    {line}" for line in docs.get(leaf.path, "").splitlines()]
    below = [path for path in groups if group is not None and _parent(path) == group]
    if below:
        lines += ["", "groups below, for --help-for:"] if leaves else []
        lines += [f"  {path}: {docs[path]}" for path in below]
    return "\n".join(lines)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
