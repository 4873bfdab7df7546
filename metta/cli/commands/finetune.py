"""`metta finetune`: a new run that begins with the weights of a saved policy."""

import argparse
from pathlib import Path

from metta.cli.commands.train import add_run_options, checked_options
from metta.cli.policy_names import POLICY_HELP, say_choice
from metta.cli.tables import say
from metta.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Begins a new run with the weights and normalisers of a saved policy, and nothing else of the "
        "run that it comes from: optimizer, counters and schedules start over. To continue a run, "
        "use `metta resume`."
    )
    parser.epilog = "e.g.: metta finetune first:best Acrobot-v1 learning_rate=1e-4 --run second"
    parser.add_argument(
        "policy",
        metavar="POLICY",
        help=POLICY_HELP,
    )
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Load the policy, and train it in a new folder."""
    resolved, output = checked_options(options)
    import dataclasses  # this and torch load here, not for --help

    from metta.cli.training import new_run_dir, train_in
    from metta.envs.factory import make_vec_env
    from metta.store.policy_store import PolicyStore
    from metta.train.parsing.origins import COMMAND_LINE

    origins = resolved.origins.items()
    chosen = [
        path for path, origin in origins if path.startswith("agent.") and origin == COMMAND_LINE
    ]
    if chosen:
        raise ConfigError(
            f"{', '.join(chosen)} cannot be chosen here: the network is that of the policy; leave it out"
        )
    if resolved.config.trainer.system.num_processes > 1:
        raise ConfigError(
            "finetune begins a run in one process; leave num_processes out, and continue with: "
            "metta resume RUN num_processes=N"
        )
    task = resolved.config.trainer.curriculum
    store = PolicyStore(output)
    env = make_vec_env(task.env, env_kwargs=task.env_kwargs, wrappers=task.wrappers)
    try:
        record = store.load(options.policy, env)
    finally:
        env.close()
    assert record.policy is not None
    config = dataclasses.replace(resolved.config, agent=record.policy.config)
    folder = new_run_dir(output, config) if options.run is None else output / options.run
    _require_new(folder)
    say_choice(options.policy, record, store)
    say(f"begins with the policy {record.uri} (epoch {record.epoch})")
    provenance = {**resolved.provenance(), "initial_policy": record.uri}
    return train_in(folder, config, provenance, policy=record.policy)


def _require_new(folder: Path) -> None:
    if any((folder / name).exists() for name in ("checkpoints", "run.json")):
        raise ConfigError(
            f"{str(folder)!r} holds a run already; fine-tuning begins a new one: choose another --run"
        )
