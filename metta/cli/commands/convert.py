"""`metta convert`: a pickle of tensors that you trust becomes a safetensors file."""

import argparse
from pathlib import Path

from metta.cli.options import add_out, written_file
from metta.cli.tables import say
from metta.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Reads a file of torch.save and writes its tensors as safetensors, named by their path in it. "
        "The file is read by torch's restricted unpickler (weights_only=True, and never otherwise), in "
        "a separate process with bounded memory and time, and without network access if the kernel "
        "allows that. A file that holds anything but tensors is refused."
    )
    parser.epilog = (
        "The result is plain data: safetensors.torch.load_file(TARGET) gives the tensors, and "
        "load_state_dict puts them into your own module."
    )
    parser.add_argument("source", metavar="SOURCE.pt", help="a file of torch.save")
    parser.add_argument("target", nargs="?", metavar="TARGET.safetensors", help="the file to write")
    add_out(parser, "the same as TARGET.safetensors")
    parser.add_argument(
        "--part", metavar="NAME", help="convert one entry of the file only, e.g. model_state_dict"
    )
    parser.add_argument(
        "--i-trust-this-file",
        action="store_true",
        help="confirm that you know who made SOURCE and trust them; without it nothing is read",
    )


def run(options: argparse.Namespace) -> int:
    """Convert."""
    source = Path(options.source)
    target = written_file(options.out, options.target)
    if not options.i_trust_this_file:
        raise ConfigError(
            f"{str(source)!r} was not read. A pickle is a program, and guards around it have had holes; "
            "convert only files from sources you trust, and confirm that with --i-trust-this-file"
        )
    if target.exists():
        raise ConfigError(f"{str(target)!r} exists already; choose another name")
    from metta.store.pickle_converter import convert_pickle  # torch loads here, not for --help

    found = convert_pickle(source, target, part=options.part)
    say(f"wrote {len(found.places)} tensors ({found.data_bytes:,} bytes) to {target}")
    return 0
