"""`metta export`: a saved policy for other programs, as ONNX or as a torch.export file."""

import argparse

from metta.cli.options import add_out, add_runs, written_file
from metta.cli.policy_names import POLICY_HELP, say_choice
from metta.cli.tables import say
from metta.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Writes the deterministic part of a saved policy: observations (for recurrent policies also state "
        "and starts) to distribution parameters, value, the most likely action as the environment takes "
        "it, and the next state. Normalisers are inside; any number of rows goes in. The file is read "
        "again and compared with the policy on random observations before it gets its name."
    )
    parser.epilog = (
        "Networks that metta did not build are exported from Python: "
        "metta.store.exports.policy_export.export_policy(policy, FILE, format=...)."
    )
    parser.add_argument(
        "policy",
        metavar="POLICY",
        help=POLICY_HELP,
    )
    parser.add_argument(
        "--format",
        choices=("onnx", "torch"),
        required=True,
        help="onnx: for ONNX runtimes, needs the extra 'onnx'; torch: for torch.export.load (.pt2)",
    )
    add_out(parser, "the file to write; it must not exist")
    parser.add_argument("--file", dest="out", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--action-mask",
        action="store_true",
        help="take legal actions as an input, even if the observations do not hold them",
    )
    parser.add_argument(
        "--sha256", metavar="DIGEST", help="export only the policy file that has this digest"
    )
    add_runs(parser, writes="file")


def run(options: argparse.Namespace) -> int:
    """Export, and print the file's inputs and outputs."""
    target = written_file(options.out)
    if target.exists():
        raise ConfigError(f"{str(target)!r} exists already; choose another name")
    from metta.store.exports.policy_export import export_policy  # torch loads here, not for --help
    from metta.store.loaded_policy import load_policy
    from metta.store.policy_store import PolicyStore

    found = load_policy(options.policy, sha256=options.sha256, runs=options.runs)
    say_choice(options.policy, found.record, PolicyStore(options.runs))
    masks = True if options.action_mask else None
    made = export_policy(found.policy, target, format=options.format, action_mask=masks)
    say(f"wrote {made.path} ({made.path.stat().st_size:,} bytes) from {found.record.uri}")
    say(f"inputs:  {', '.join(made.inputs)}")
    say(f"outputs: {', '.join(made.outputs)}")
    say(f"largest difference from the policy: {made.largest_difference:.1e}")
    return 0
