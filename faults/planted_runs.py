"""Real runs with a planted secret; each runs in a separate process, for `planted_secrets`.

A run gets the secret, proves that it was really in play by writing its digest to ``proof``, and leaves
whatever it leaves in its folder, which is the current one.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from faults.secretive import ENV_ID, digest
from metta.cli.main import main
from metta.errors import ConfigError, HookError
from metta.loggers import (
    EventLog,
    MetricRow,
    StatsClient,
    StatsLogger,
    close_wandb_run,
    open_wandb_run,
)
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.store.policies.file import save_policy
from metta.store.policy_store import PolicyStore
from metta.train.run_config import WandbConfig
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

VARIABLE, PLAIN_VARIABLE = "PLANTED_TOKEN", "PLANTED_HANDSHAKE"
SMALL = {"total_timesteps": 64, "num_envs": 2, "horizon": 8, "num_minibatches": 1, "update_epochs": 1,
         "checkpoint_interval": 1, "eval_episodes": 2, "eval_envs": 1, "hidden_size": 8}  # fmt: skip
ALL_SINKS = {"logging.csv": True, "logging.tensorboard": True, "logging.wandb.mode": "offline",
             "wandb_checkpoint_interval": 2}  # fmt: skip
NOWHERE = Path(os.devnull)
_OK, _FAILED, _USAGE = 0, 1, 2

Planting = Callable[[str, Path], None]
RUNS: dict[str, Planting] = {}
"""Name of a way to plant a secret -> the run; called in an empty folder with the secret and the proof."""


def planted(run: Planting) -> None:
    RUNS[run.__name__] = run


def handed_over(run: Callable[[str], None]) -> None:
    """As `planted`, where it is proof enough that the run ends well."""

    def play_and_prove(secret: str, proof: Path) -> None:
        run(secret)
        proof.write_text(digest(secret))

    RUNS[run.__name__] = play_and_prove


def play(name: str, secret: str, folder: str, proof: str) -> None:
    """Run one in this process; what it shows goes to ``console.txt``."""
    os.chdir(folder)
    os.environ["HOME"] = folder  # what is written beside the run would be found there
    console = os.open("console.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(console, 1)
    os.dup2(console, 2)
    RUNS[name](secret, Path(proof))


def as_words(settings: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def train(proof: Path, kwargs: dict[str, Any], *words: str, code: int = _OK) -> None:
    """`metta train` in this process."""
    given = json.dumps({"proof": str(proof), **kwargs})
    sys.argv = ["metta", "train", f"env={ENV_ID}", *as_words(SMALL), f"env_kwargs={given}", *words]
    sys.argv += ["--run", "run"]
    found = main()
    assert found == code, f"metta train ended with {found}"


def train_with_reference(
    secret: str, proof: Path, *words: str, code: int = _OK, **kwargs: Any
) -> None:
    """The same, with the secret in a variable whose name does not look secret."""
    os.environ[PLAIN_VARIABLE] = secret
    train(proof, {"handshake": f"env:{PLAIN_VARIABLE}", **kwargs}, *words, code=code)


def trainer(*, hooks: tuple[TrainerHook, ...] = (), **settings: Any) -> Trainer:
    config = apply_settings(TrainingConfig(), {**SMALL, **settings})
    made = Trainer(config, run_dir="run")
    for hook in hooks:
        made.add_hook(hook)
    return made


def run(made: Trainer) -> None:
    with made:
        made.train()


# references: the environment gets the secret, and files the name of the variable


@planted
def reference(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret
    train(proof, {"api_key": f"env:{VARIABLE}"})


@planted
def reference_to_a_variable_with_an_innocent_name(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof)


@planted
def reference_deep_inside(secret: str, proof: Path) -> None:
    os.environ[PLAIN_VARIABLE] = secret
    login = {"user": "bot", "password": f"env:{PLAIN_VARIABLE}"}
    train(proof, {"servers": [{"name": "a", "login": login}]})


@planted
def reference_in_workers(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, "num_workers=2")


@planted
def reference_with_every_sink(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, *as_words(ALL_SINKS))
    assert list(Path("runs/run/tensorboard").iterdir())
    assert list(Path("runs/run/wandb").glob("offline-run-*/*.wandb"))


@planted
def reference_and_resume(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret
    train(proof, {"api_key": f"env:{VARIABLE}"})
    assert main(["resume", "run", "total_timesteps=96"]) == _OK


@planted
def reference_in_a_command_of_its_own(secret: str, proof: Path) -> None:
    given = json.dumps({"proof": str(proof), "api_key": f"env:{VARIABLE}"})
    words = ["train", f"env={ENV_ID}", *as_words(SMALL), f"env_kwargs={given}", "--run", "run"]
    variables = {**os.environ, VARIABLE: secret, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "metta.cli.main", *words]
    assert subprocess.run(command, env=variables, check=False).returncode == _OK


# exceptions: their texts may hold everything that an environment knows


@planted
def failure_while_made(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, code=_FAILED, fails="init", fails_from=1)


@planted
def failure_of_a_throwaway(secret: str, proof: Path) -> None:
    """Only the instance fails on which it is tried whether environments can be restored."""
    train_with_reference(secret, proof, "eval_episodes=0", fails="init", fails_from=2)


@planted
def failure_in_reset(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, code=_FAILED, fails="reset")


@planted
def failure_in_step(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, "checkpoint_interval=0", code=_FAILED, fails="step")


@planted
def failure_in_a_worker(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret
    kwargs = {"api_key": f"env:{VARIABLE}", "fails": "step"}
    train(proof, kwargs, "num_workers=1", "checkpoint_interval=0", code=_FAILED)


@planted
def failure_while_evaluating(secret: str, proof: Path) -> None:
    train_with_reference(secret, proof, "checkpoint_interval=0", fails="step", fails_from=2)


@handed_over
def failure_of_the_module(secret: str) -> None:
    """An exception that metta does not expect: its traceback is shown."""
    os.environ[VARIABLE] = secret
    Path("blabbing.py").write_text(
        f"import os\nraise RuntimeError('cannot log in with ' + os.environ[{VARIABLE!r}])\n"
    )
    command = [sys.executable, "-m", "metta.cli.main", "train", "blabbing:Any-v0"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path.cwd())])}
    assert subprocess.run(command, env=variables, check=False).returncode == _FAILED
    assert "RuntimeError: cannot log in with ***" in Path("console.txt").read_text()


@planted
def failure_of_a_hook(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret

    class Blabs(TrainerHook):
        def on_epoch_end(self) -> None:
            proof.write_text(digest(secret))
            raise RuntimeError(f"the server does not know {secret}")

    with contextlib.suppress(HookError):
        run(trainer(hooks=(Blabs(),)))


@planted
def failure_of_a_sink(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret

    class Blabs:
        name = "blabs"

        def write(self, row: MetricRow) -> None:  # noqa: ARG002  # what a sink is given
            proof.write_text(digest(secret))
            raise OSError(f"the server does not know {secret}")

        def flush(self) -> None: ...

        def close(self) -> None: ...

    log = EventLog("run/events.jsonl")
    with log, StatsLogger([Blabs()], event_log=log, run_dir="run", drain_seconds=0.3) as logger:
        logger.log({"loss": 0.5}, agent_step=1, epoch=1)
        logger.flush(0.3)
    assert Path("run/undelivered-blabs.jsonl").exists()


# refused: a secret in a setting would be written to config.yaml


@handed_over
def setting_on_the_command_line(secret: str) -> None:
    train(NOWHERE, {"api_key": secret}, code=_USAGE)


@handed_over
def option_that_there_is_not(secret: str) -> None:
    with contextlib.suppress(SystemExit):
        main(["train", f"--password={secret}", "--api-key", secret])
    assert "unrecognized arguments: --" in Path("console.txt").read_text()


@handed_over
def setting_in_a_file(secret: str) -> None:
    Path("mine.yaml").write_text(
        yaml.safe_dump({"env_kwargs": {"auth": {"user": "a", "pin": secret}}})
    )
    assert main(["train", "cartpole", "mine.yaml", "--run", "run"]) == _USAGE
    Path("mine.yaml").unlink()


@planted
def setting_that_is_overridden(secret: str, proof: Path) -> None:
    """The file holds it, the command line replaces it: what was overridden is written down too."""
    os.environ[PLAIN_VARIABLE] = secret
    kwargs = {"proof": str(proof), "api_key": secret}
    Path("mine.yaml").write_text(yaml.safe_dump({"env_kwargs": kwargs}))
    train(proof, {"handshake": f"env:{PLAIN_VARIABLE}"}, "mine.yaml")
    Path("mine.yaml").unlink()


@handed_over
def setting_with_a_url(secret: str) -> None:
    url = f"postgres://bot:{quote(secret, safe='')}@host/runs"
    train(NOWHERE, {"handshake": url}, code=_USAGE)


@handed_over
def setting_with_a_query(secret: str) -> None:
    tags = json.dumps([f"https://host/?token={quote(secret, safe='')}"])
    assert main(["train", f"logging.wandb.tags={tags}", "--run", "run"]) == _USAGE


@handed_over
def setting_pasted_from_a_variable(secret: str) -> None:
    os.environ[VARIABLE] = secret
    train(NOWHERE, {"handshake": secret}, code=_USAGE)


@handed_over
def setting_of_a_wrong_type(secret: str) -> None:
    os.environ[VARIABLE] = secret
    given = json.dumps([secret, {"server": secret}])
    assert main(["train", f"env_kwargs={given}", "--run", "run"]) == _USAGE


@planted
def setting_from_python(secret: str, proof: Path) -> None:
    try:
        run(trainer(env_kwargs={"client": {"apiKey": secret}}))
    except ConfigError as error:
        print(error)
        proof.write_text(digest(secret))


# what users hand over


@planted
def metadata_with_a_known_secret(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret

    class Notes(TrainerHook):
        order = 5

        def on_checkpoint(self, checkpoint: Any) -> None:
            checkpoint.metadata["note"] = [f"logged in with {secret}"]
            proof.write_text(digest(secret))

    run(trainer(hooks=(Notes(),), **ALL_SINKS))


@planted
def metadata_by_its_name(secret: str, proof: Path) -> None:
    class Notes(TrainerHook):
        order = 5

        def on_checkpoint(self, checkpoint: Any) -> None:
            checkpoint.metadata["server"] = {"api_key": secret, "port": 80}
            proof.write_text(digest(secret))

    run(trainer(hooks=(Notes(),)))


@handed_over
def metadata_of_a_policy(secret: str) -> None:
    made = trainer()
    made.setup()
    policy = made.components.policy
    about = {"origin": f"https://bot:{quote(secret, safe='')}@host/", "credentials": [secret]}
    PolicyStore("run").save(policy, "mine", 1, 1, about)
    save_policy("run/other.safetensors", policy, about)
    made.cleanup()


@handed_over
def attributes_of_a_run(secret: str) -> None:
    with EventLog("run/events.jsonl") as log:
        client = StatsClient(log)
        run_id = client.create_run("mine", {"password": secret, "seed": 1})
        client.end_run(run_id, f"lost the connection: password={quote(secret, safe='')}")


@planted
def reason_to_stop(secret: str, proof: Path) -> None:
    os.environ[VARIABLE] = secret

    class Stops(TrainerHook):
        def on_epoch_end(self, trainer_state: Any) -> None:
            proof.write_text(digest(secret))
            trainer_state.request_stop(f"the server no longer takes {secret}")

    run(trainer(hooks=(Stops(),)))


@handed_over
def provenance_with_the_command_line(secret: str) -> None:
    command = ["script.py", f"--password={secret}", "--api-key", secret]
    provenance = {"command": command, "settings": {}, "files": {}}
    config = apply_settings(TrainingConfig(), SMALL)
    run(Trainer(config, run_dir="run", provenance=provenance))


# W&B, which writes down what it finds


@handed_over
def command_line_that_wandb_sees(secret: str) -> None:
    sys.argv = ["script.py", f"--password={secret}", secret]
    run(trainer(**ALL_SINKS))


@handed_over
def variable_that_wandb_sees(secret: str) -> None:
    os.environ["WANDB_API_KEY"] = os.environ[VARIABLE] = secret
    run(trainer(**ALL_SINKS))


@handed_over
def config_of_a_wandb_run(secret: str) -> None:
    os.environ[VARIABLE] = secret
    config = {"server": {"auth": secret}, "note": f"with {secret}", "list": [{"x": (secret,)}]}
    opened = open_wandb_run(WandbConfig(mode="offline"), "run", "mine", config)
    close_wandb_run(opened)
