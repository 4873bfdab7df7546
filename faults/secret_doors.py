"""Doors through which secrets of many names enter a run at once; for `planted_names`.

A door takes names and their secrets, hands each to metta as users do, and fails where one was not in play.
What is written or shown is left in the current folder.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import gymnasium
import numpy as np
import yaml
from gymnasium import spaces

from faults.planted_runs import ALL_SINKS, SMALL, as_words, run, trainer
from metta.cli.main import main
from metta.loggers import EventLog, StatsClient, close_wandb_run, open_wandb_run
from metta.rl.hooks.base import TrainerHook
from metta.train.run_config import WandbConfig

ENV_ID = "faults.secret_doors:Blabs-v0"
_OK, _FAILED, _USAGE = 0, 1, 2

Door = Callable[[Mapping[str, str]], None]


class BlabsEnv(gymnasium.Env):
    """Ends in an exception with `text` in it, as clients of servers do; well-behaved without."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    text: ClassVar[str] = ""
    times: ClassVar[int] = 0

    def __init__(self, **_: Any) -> None:
        self.step_number = 0

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002  # as Gymnasium has it
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        if BlabsEnv.text and self.step_number == 5:
            BlabsEnv.times += 1
            raise ConnectionError(f"the server refused: {BlabsEnv.text}")
        return np.zeros(2, np.float32), float(action), self.step_number == 10, False, {}


if "Blabs-v0" not in gymnasium.registry:
    gymnasium.register("Blabs-v0", entry_point=BlabsEnv)


def train(*words: str, run_name: str = "run") -> int:
    """`metta train` in this process; what W&B and tracebacks see of the command is the same."""
    sys.argv = ["metta", "train", f"env={ENV_ID}", *as_words(SMALL), *words, "--run", run_name]
    return main()


def blab(text: str) -> None:
    """The text in exceptions of `metta train` with every sink, and of `metta eval`."""
    assert train(run_name="well") == _OK
    BlabsEnv.text = text
    assert train(*as_words(ALL_SINKS), "checkpoint_interval=0") == _FAILED
    assert main(["eval", "well:best", "--env", ENV_ID, "--episodes", "1"]) == _FAILED
    assert BlabsEnv.times >= 2, "the text was not in play"


def refused(run_name: str, settings: Mapping[str, Any]) -> None:
    code = train(f"env_kwargs={json.dumps(settings)}", run_name=run_name)
    assert code == _USAGE, f"{sorted(settings)} was not refused"
    assert not Path("runs", run_name).exists()


# variables, whose values appear without their names


def variables_in_exceptions(secrets: Mapping[str, str]) -> None:
    os.environ.update(secrets)
    blab(", ".join(f"who is {value}" for value in secrets.values()))


def variables_pasted_into_settings(secrets: Mapping[str, str]) -> None:
    os.environ.update(secrets)
    for number, value in enumerate(secrets.values()):
        refused(f"run-{number}", {"handshake": value})


def variables_in_a_run_that_ends_well(secrets: Mapping[str, str]) -> None:
    """W&B reads the environment of the process, and so does code that writes metadata."""
    os.environ.update(secrets)

    class Notes(TrainerHook):
        order = 5

        def on_checkpoint(self, checkpoint: Any) -> None:
            checkpoint.metadata["notes"] = [f"used {value}" for value in secrets.values()]

    run(trainer(hooks=(Notes(),), **ALL_SINKS))
    assert list(Path("run/checkpoints").glob("epoch_*"))


def urls_in_variables(secrets: Mapping[str, str]) -> None:
    """A password inside of a variable's value turns up alone."""
    for name, value in secrets.items():
        os.environ[name] = _VALUES[name].format(value)
    blab(", ".join(f"who is {value}" for value in secrets.values()))


_VALUES = {
    "DATABASE_URL": "postgresql://metta:{}@host/metta",
    "CELERY_BROKER_URL": "redis://:{}@host:6379/0",
    "SENTRY_DSN": "https://{}@sentry.example/1",
    "HTTPS_PROXY": "http://bot:{}@proxy.example:3128",
    "ODBC_CONNECTION": "Driver=x;Server=host;UID=bot;PWD={};",
    "AZURE_CONNECTION_STRING": "AccountName=a;AccountKey={};EndpointSuffix=b",
    "LIBPQ_CONNECTION": "host=host dbname=metta password={}",
    "DOCKER_AUTH_CONFIG": '{{"auths": {{"host": {{"auth": "{}"}}}}}}',
}
URL_VARIABLES = tuple(_VALUES)


# names with a secret behind them, in texts of others


def assignments_in_exceptions(secrets: Mapping[str, str]) -> None:
    texts = [f"{name}={v} and {name}='{v}', {{'{name}': '{v}'}}" for name, v in secrets.items()]
    blab("; ".join(texts))


def options_in_exceptions(secrets: Mapping[str, str]) -> None:
    blab(" ".join(f"run --{name} {value} --{name}={value}" for name, value in secrets.items()))


def headers_in_exceptions(secrets: Mapping[str, str]) -> None:
    lines = [f"{name}: {value}\n{{'{name}': '{value}'}}" for name, value in secrets.items()]
    blab("\n".join(lines))


def queries_in_exceptions(secrets: Mapping[str, str]) -> None:
    blab(" ".join(f"GET https://host/a?x=1&{name}={v}&y=2" for name, v in secrets.items()))


def shapes_in_exceptions(secrets: Mapping[str, str]) -> None:
    blab(" ".join(f"the answer was {value}." for value in secrets.values()))


# settings, which would be written


def settings_on_the_command_line(secrets: Mapping[str, str]) -> None:
    for number, (name, value) in enumerate(secrets.items()):
        refused(f"run-{number}", {"client": {name: value}})


def queries_in_settings(secrets: Mapping[str, str]) -> None:
    for number, (name, value) in enumerate(secrets.items()):
        refused(f"run-{number}", {"server": f"https://host/?{name}={quote(value, safe='')}"})


def shapes_in_settings(secrets: Mapping[str, str]) -> None:
    for number, value in enumerate(secrets.values()):
        refused(f"run-{number}", {"handshake": f"it is {value}"})


def settings_that_are_overridden(secrets: Mapping[str, str]) -> None:
    """A file has them, the command line replaces them: provenance has what was overridden."""
    Path("mine.yaml").write_text(yaml.safe_dump({"env_kwargs": dict(secrets)}))
    assert train("mine.yaml", "env_kwargs={}") == _OK
    Path("mine.yaml").unlink()
    text = Path("runs/run/provenance.json").read_text()
    assert all(json.dumps(name) in text for name in secrets), "the file was not in play"


def options_that_there_are_not(secrets: Mapping[str, str]) -> None:
    for name, value in secrets.items():
        for words in ([f"--{name}={value}"], [f"--{name}", value]):
            with contextlib.suppress(SystemExit):
                main(["train", *words])
    assert Path("console.txt").read_text().count("unrecognized arguments") == 2 * len(secrets)


# what is handed over from Python


def metadata_of_checkpoints(secrets: Mapping[str, str]) -> None:
    class Notes(TrainerHook):
        order = 5

        def on_checkpoint(self, checkpoint: Any) -> None:
            checkpoint.metadata["server"] = dict(secrets)

    run(trainer(hooks=(Notes(),), **ALL_SINKS))
    manifests = list(Path("run/checkpoints").glob("epoch_*/manifest.json"))
    assert manifests, "no checkpoint was written"


def configs_of_wandb(secrets: Mapping[str, str]) -> None:
    opened = open_wandb_run(WandbConfig(mode="offline"), "run", "mine", {"server": dict(secrets)})
    close_wandb_run(opened)


def command_lines_that_wandb_sees(secrets: Mapping[str, str]) -> None:
    sys.argv = ["script.py", *(f"--{name}={value}" for name, value in secrets.items())]
    run(trainer(**ALL_SINKS))


def attributes_in_the_database(secrets: Mapping[str, str]) -> None:
    with EventLog("runs/mine/events.jsonl") as log:
        client = StatsClient(log)
        run_id = client.create_run("mine", {"server": dict(secrets)})
        client.end_run(run_id, "; ".join(f"{name}={value}" for name, value in secrets.items()))
    assert main(["stats", "ingest"]) == _OK
    assert main(["runs", "show", "mine", "--database", "runs/stats.db"]) == _OK
    assert Path("runs/stats.db").stat().st_size


# addresses of databases


def connection_parameters(secrets: Mapping[str, str]) -> None:
    for name, value in secrets.items():
        for text in (f"host=h {name}={value}", f"{name} = {value} dbname=a.db"):
            assert main(["stats", "tables", "--database", text]) == _USAGE, name
            os.environ["METTA_STATS_URL"] = text
            assert main(["stats", "ingest"]) == _USAGE, name


def urls_of_databases(secrets: Mapping[str, str]) -> None:
    """A port without a server; libpq reports parameters that it does not know."""
    Path("runs").mkdir()
    for name, value in secrets.items():
        for url in (
            f"postgresql://bot:{value}@127.0.0.1:1/metta",
            f"postgresql://bot@127.0.0.1:1/metta?{name}={value}",
            f"mysql://bot:{value}@host/metta",
            f"bot:{value}@host/metta.db",
        ):
            code = main(["stats", "ingest", "--database", url])
            assert code in (_FAILED, _USAGE), url
