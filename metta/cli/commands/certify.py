"""`metta certify`: is a resumed run of this set-up equal to an uninterrupted one, to the bit?"""

import argparse
from typing import TYPE_CHECKING

from metta.cli.arguments import resolve_arguments
from metta.cli.options import add_words
from metta.cli.tables import say
from metta.errors import ConfigError

if TYPE_CHECKING:
    from metta.testing.certification import Certificate

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains a shortened run of a set-up three times in separate processes, kills the third "
        "several times, and compares every component of its state with the undisturbed runs."
    )
    parser.epilog = "Exit code 0 if the resumed run is equal to the bit, else 1."
    add_words(parser)
    parser.add_argument(
        "--epochs", type=int, default=6, help="epochs of a run (default: %(default)s)"
    )
    parser.add_argument(
        "--kills", type=int, default=3, help="how often to kill (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(options: argparse.Namespace) -> int:
    """Certify, and print the result."""
    if options.epochs < 2 or options.kills < 1:
        raise ConfigError("certify needs at least --epochs 2 and --kills 1")
    resolved = resolve_arguments(options.words, [])
    import dataclasses  # these and torch load here, not for --help
    import json

    from metta.testing.certification import certify

    certificate = certify(resolved.config, epochs=options.epochs, kills=options.kills)
    if options.json:
        say(json.dumps({**dataclasses.asdict(certificate), "exact": certificate.is_exact}))
    else:
        say(_shown(certificate))
    return 0 if certificate.is_exact else 1


def _shown(certificate: "Certificate") -> str:
    lines = [certificate.support]
    width = max(map(len, certificate.components))
    for name in certificate.components:
        place = certificate.differences.get(name)
        lines.append(f"  {name:<{width}}  {'exact' if place is None else f'DIFFERS in {place}'}")
    killed = ", ".join(map(str, certificate.kills)) or "never in time"
    lines.append(f"{certificate.epochs} epochs, killed after epochs {killed}")
    if certificate.noise is not None:
        lines.append(
            "NOT REPRODUCIBLE: two undisturbed runs differ already, at "
            f"{certificate.noise}; look for randomness that is not seeded"
        )
    elif certificate.is_exact:
        lines.append("CERTIFIED: the killed and resumed run equals the undisturbed one, to the bit")
    else:
        lines.append("NOT EXACT: a resumed run of this set-up differs from an uninterrupted one")
    return "\n".join(lines)
