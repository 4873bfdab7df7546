"""Weights & Biases: opening a run, logging records to it, and closing it without side effects."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from metta.errors import ConfigError, MettaError, MissingExtraError, UnsafeFileError
from metta.files import atomic_write_text
from metta.loggers.sink import MetricRow
from metta.secrets import scrub_all
from metta.train.run_config import WandbConfig
from metta.untrusted.files import read_bounded
from metta.untrusted.json_files import brief
from metta.untrusted.paths import NAME

__all__ = ["WandbRun", "WandbSink", "close_wandb_run", "open_wandb_run", "upload_replays"]

_X_AXIS = "metric/agent_step"
_MAX_ID_BYTES = 1024


class WandbRun(Protocol):
    """The part of a W&B run that metta uses."""

    @property
    def id(self) -> str:
        """Unique in its project."""
        ...

    @property
    def name(self) -> str | None:
        """The name that is shown."""
        ...

    @property
    def project(self) -> str:
        """Where the run belongs."""
        ...

    @property
    def entity(self) -> str:
        """The owner of the project."""
        ...

    @property
    def summary(self) -> Any:
        """Last values; a mapping that may be written."""
        ...

    def define_metric(self, name: str, *, step_metric: str | None = None) -> Any:
        """Choose the x axis of metrics."""
        ...

    def log(self, data: dict[str, Any]) -> None:
        """Log one record."""
        ...

    def log_artifact(self, artifact_or_path: Any, *, aliases: list[str] | None = None) -> Any:
        """Upload a file."""
        ...

    def finish(self, exit_code: int | None = None) -> None:
        """End the run."""
        ...


class WandbSink:
    """Logs records over ``metric/agent_step``; the code that opened the run finishes it."""

    name = "wandb"
    takes_constants = True

    def __init__(self, run: WandbRun) -> None:
        self.run = run
        self._has_axis = False

    def write(self, row: MetricRow) -> None:
        """Hand one record to W&B."""
        if not self._has_axis:
            self.run.define_metric(_X_AXIS)
            self.run.define_metric("*", step_metric=_X_AXIS)
            self._has_axis = True
        self.run.log({**row.metrics, _X_AXIS: row.agent_step, "metric/epoch": row.epoch})

    def flush(self) -> None:
        """Does nothing: W&B decides when to send."""

    def close(self) -> None:
        """Does nothing: the run stays open."""


def open_wandb_run(
    config: WandbConfig,
    run_dir: str | os.PathLike[str],
    name: str,
    config_dict: Mapping[str, Any] | None = None,
) -> WandbRun | None:
    """A run of W&B for a run directory, or None if W&B is off; extra `wandb`.

    It is quiet, asks nothing, and leaves output, signals and exit handlers of this process alone.
    Offline it needs no network and writes below ``run_dir/wandb`` only. A run directory that had one
    before continues with the same id. Pass it to `close_wandb_run` at the end.
    """
    if config.mode == "off":
        return None
    folder = Path(run_dir).absolute()
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    if config.mode == "offline":
        _Environment.enter(folder / "wandb")
    try:
        return _init(config, folder, name, scrub_all(dict(config_dict or {})))
    except BaseException as error:
        _Environment.leave()
        if type(error).__module__.startswith("wandb"):  # its errors, which only it can name
            raise ConfigError(
                f"trainer.logging.wandb.mode={config.mode}: W&B cannot start: {error}; run `wandb login`, "
                "or use trainer.logging.wandb.mode=offline"
            ) from error
        raise


def _init(config: WandbConfig, folder: Path, name: str, config_dict: dict[str, Any]) -> WandbRun:
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases") from None
    settings = wandb.Settings(
        console="off",
        silent=True,
        quiet=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,  # `SystemMonitor` measures already
        x_disable_meta=True,  # it has the command line, which may hold secrets
    )
    id_file = folder / "wandb" / "run-id.txt"
    known = _known_id(id_file)
    with _exit_handlers_kept():
        run: WandbRun = wandb.init(
            id=known,
            resume="allow" if known and config.mode == "online" else None,
            mode="offline" if config.mode == "offline" else "online",
            dir=str(folder),
            project=config.project,
            entity=config.entity,
            tags=list(config.tags),
            name=name,
            config=config_dict,
            settings=settings,
        )
    if known is None:
        atomic_write_text(id_file, run.id)
    return run


def _known_id(file: Path) -> str | None:
    """The run's id in W&B; None if it has none yet."""
    if not os.path.lexists(file):
        return None
    known = read_bounded(file, _MAX_ID_BYTES).decode(errors="replace").strip()
    if not NAME.fullmatch(known):
        raise UnsafeFileError(
            f"{str(file)!r} holds {brief(known)}, which is not an id of W&B; remove it"
        )
    return known


def close_wandb_run(run: WandbRun | None, *, exit_code: int = 0) -> None:
    """Finish a run, and end W&B's process if no other run needs it."""
    if run is None:
        return
    import wandb

    with _exit_handlers_kept():
        run.finish(exit_code=exit_code)
        if wandb.run is None:
            wandb.teardown()
    _Environment.leave()


def upload_replays(run: WandbRun, files: Mapping[str, str], about: Mapping[str, Any]) -> str:
    """Log the replays of one epoch (simulation -> path) as an artifact; returns its ``wandb://`` URI.

    In offline mode they wait in the run's folder for ``wandb sync``. `about` has the ``epoch``.
    """
    try:
        import wandb  # an extra, and slow to import
    except ImportError as error:
        raise MissingExtraError("wandb", "wandb", "uploading replays") from error
    name, alias = f"replay-{run.id}", f"epoch_{about['epoch']:06d}"
    names = {simulation: Path(path).name for simulation, path in files.items()}
    try:
        artifact = wandb.Artifact(name, type="replay", metadata={**about, "files": names})
        for path in files.values():
            artifact.add_file(path, Path(path).name)
        run.log_artifact(artifact, aliases=["latest", alias])
    except (OSError, ValueError, wandb.Error) as error:
        raise MettaError(
            f"replays of epoch {about['epoch']} could not be uploaded: {error}"
        ) from error
    place = "/".join(part for part in (run.entity, run.project, name) if part)
    return f"wandb://{place}:{alias}"


@contextlib.contextmanager
def _exit_handlers_kept() -> Iterator[None]:
    """W&B replaces these to learn how the process ends; runs are closed here instead."""
    kept = sys.excepthook, sys.exit
    try:
        yield
    finally:
        sys.excepthook, sys.exit = kept


class _Environment:
    """Variables that keep W&B inside a run directory and off the network, while a run is open."""

    _kept: dict[str, str | None] | None = None

    @classmethod
    def enter(cls, folder: Path) -> None:
        """Set them, unless they are set by a run that is still open."""
        if cls._kept is not None:
            return
        variables = {
            "WANDB_CACHE_DIR": str(folder / "cache"),
            "WANDB_DATA_DIR": str(folder / "data"),
            "WANDB_CONFIG_DIR": str(folder / "config"),
            "WANDB_ERROR_REPORTING": "false",
        }
        cls._kept = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    @classmethod
    def leave(cls) -> None:
        """Restore the previous values."""
        for name, value in (cls._kept or {}).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        cls._kept = None
