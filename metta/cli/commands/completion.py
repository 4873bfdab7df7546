"""`metta completion`: scripts that let a shell complete commands, presets, files and settings."""

import argparse
import sys

__all__ = ["configure", "run", "script"]

_SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Prints a completion script."
    parser.epilog = (
        'bash and zsh: eval "$(metta completion bash)"; fish: metta completion fish | source'
    )
    parser.add_argument("shell", choices=_SHELLS)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The completion script for a shell, made of the real parser and the real settings."""
    from metta.cli.main import build_parser

    commands = _commands(build_parser())
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands, _presets(), _settings())


Commands = dict[str, argparse.ArgumentParser]


def _commands(parser: argparse.ArgumentParser) -> Commands:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    return [
        str(choice)
        for action in parser._actions
        if not action.option_strings
        for choice in action.choices or ()
    ]


def _takes_settings(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest == "words" for action in parser._actions)


def _presets() -> list[str]:
    from metta.train.presets import PRESETS

    return list(PRESETS)


def _settings() -> list[str]:
    from metta.train.parsing.schema import leaves_of
    from metta.train.train_config import TrainingConfig

    return [f"{path}=" for path in leaves_of(TrainingConfig)]


def _bash(commands: Commands, presets: list[str], settings: list[str]) -> str:
    cases = []
    for name, parser in commands.items():
        words = " ".join([*_options(parser), *_choices(parser)])
        takes = "yes" if _takes_settings(parser) else ""
        cases.append(f'    {name}) words="{words}" settings={takes} ;;')
    return f"""# bash completion of metta
_metta() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words= settings=
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{chr(10).join(cases)}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ -n "$settings" ]; then
    COMPREPLY+=($(compgen -W "{" ".join(presets)}" -- "$current"))
    COMPREPLY+=($(compgen -f -X '!*.yaml' -- "$current") $(compgen -f -X '!*.yml' -- "$current"))
    COMPREPLY+=($(compgen -S / -d -- "$current"))
    COMPREPLY+=($(compgen -W "{" ".join(settings)}" -- "$current"))
    case "${{COMPREPLY[0]}}" in *=|*/) compopt -o nospace 2>/dev/null ;; esac
  fi
}}
complete -F _metta metta
"""


def _zsh(commands: Commands, presets: list[str], settings: list[str]) -> str:
    cases = []
    for name, parser in commands.items():
        lines = [f"    {name}) compadd -- {' '.join([*_options(parser), *_choices(parser)])}"]
        if _takes_settings(parser):
            lines += [
                f"      compadd -- {' '.join(presets)}",
                f"      compadd -S '' -- {' '.join(settings)}",
                "      _files -g '*.(yaml|yml)'",
            ]
        cases.append("\n".join([*lines, "      ;;"]))
    return f"""#compdef metta
# zsh completion of metta
_metta() {{
  if (( CURRENT == 2 )); then
    compadd -- {" ".join(commands)} --help --version
    return
  fi
  case "$words[2]" in
{chr(10).join(cases)}
  esac
}}
compdef _metta metta
"""


def _fish(commands: Commands, presets: list[str], settings: list[str]) -> str:
    lines = ["# fish completion of metta", "complete -c metta -f"]
    for name, parser in commands.items():
        about = (parser.description or "").partition(".")[0].replace("'", "")
        lines.append(f"complete -c metta -n __fish_use_subcommand -a {name} -d '{about}'")
        below = f"complete -c metta -n '__fish_seen_subcommand_from {name}'"
        lines += [
            f"{below} -l {option[2:]}" for option in _options(parser) if option.startswith("--")
        ]
        words = _choices(parser)
        if _takes_settings(parser):
            words = [*presets, *settings]
            lines.append(f"{below} -k -a '(__fish_complete_suffix .yaml)'")
        if words:
            lines.append(f"{below} -a '{' '.join(words)}'")
    return "\n".join(lines) + "\n"
