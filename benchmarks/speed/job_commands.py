"""From the rows of a workload to commands, and why some rows are left out."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.speed.job_run import Job
from benchmarks.speed.peer_catalogue import PEERS, missing_modules, peer_script
from benchmarks.speed.workloads import WORKLOADS, Entry, Workload
from metta.errors import ConfigError, did_you_mean

__all__ = ["Selection", "check_names", "find_workload", "jobs_of", "with_rows"]

_PACKAGES = Path(__file__).parents[2]
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_METTA = "metta"


@dataclass(frozen=True)
class Selection:
    """What of the workloads is wanted, and by which interpreters."""

    peers: Sequence[str] | None = None
    """Peers or rows of peers; None: all that can be had."""
    only: Sequence[str] | None = None
    """Rows by name, of metta too; None: all."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Peer (or ``metta``) -> its interpreter, where it is not this one."""
    cleanrl: Path | None = None
    """The folder of CleanRL's scripts."""
    steps: int | None = None
    """Steps of every job, in place of the workload's own."""

    def python_of(self, entry: Entry) -> str:
        """The interpreter that runs a row."""
        return self.pythons.get(entry.peer or _METTA, sys.executable)

    def wants(self, entry: Entry) -> bool:
        """Whether a row was asked for; `peers` says nothing of those of metta."""
        if self.only is not None and entry.name not in self.only:
            return False
        return entry.peer is None or self.peers is None or not {
            entry.name, entry.peer
        }.isdisjoint(self.peers)  # fmt: skip


def find_workload(name: str) -> Workload:
    """A workload by its name."""
    if name not in WORKLOADS:
        raise ConfigError(
            f"there is no workload {name!r}{did_you_mean(name, WORKLOADS)}; workloads are "
            f"{', '.join(WORKLOADS)}"
        )
    return WORKLOADS[name]


def check_names(workloads: Iterable[Workload], selection: Selection) -> None:
    """Refuse names of peers that do not exist, or that no chosen workload has."""
    for name in selection.pythons:
        if name not in (_METTA, *PEERS):
            raise ConfigError(
                f"--python names no peer {name!r}{did_you_mean(name, PEERS)}; peers are "
                f"{', '.join(PEERS)}, and {_METTA}"
            )
    workloads = list(workloads)
    names = [entry.name for workload in workloads for entry in workload.entries]
    for name in selection.only or ():
        if name not in names:
            raise ConfigError(
                f"no chosen workload has a row {name!r}{did_you_mean(name, names)}; they have "
                f"{', '.join(dict.fromkeys(names))}"
            )
    rows = {
        name: None
        for workload in workloads
        for entry in workload.entries
        if entry.peer is not None
        for name in (entry.peer, entry.name)
    }
    for name in selection.peers or ():
        if name not in rows:
            known = ", ".join(rows) or "none"
            raise ConfigError(
                f"no chosen workload has the peer {name!r}{did_you_mean(name, rows)}; they have {known}"
            )


def with_rows(workload: Workload, rows: Mapping[str, Sequence[str]]) -> Workload:
    """The workload with more rows of metta: name -> settings as ``name=value``.

    They are those of its first row of metta that trains, with other settings.
    """
    models = [e for e in workload.entries if e.peer is None and e.program == "train"]
    if not models:
        return workload
    added = []
    for name, texts in rows.items():
        pairs = (text.partition("=") for text in texts)
        settings = {**models[0].settings, **{key: value for key, _, value in pairs}}
        added.append(dataclasses.replace(models[0], name=name, settings=settings))
    return dataclasses.replace(workload, entries=(*workload.entries, *added))


def jobs_of(workload: Workload, selection: Selection) -> tuple[list[Job], list[str]]:
    """The jobs that can run here, and a line for each row that cannot, saying what it needs."""
    jobs, left_out = [], []
    for entry in filter(selection.wants, workload.entries):
        obstacle = _obstacle(entry, selection)
        if obstacle is None:
            jobs.append(_job(entry, workload, selection))
        else:
            left_out.append(f"{entry.name} is left out: {obstacle}")
    return jobs, left_out


def _obstacle(entry: Entry, selection: Selection) -> str | None:
    if entry.peer == "cleanrl":
        folder = selection.cleanrl
        if folder is None:
            return "give --cleanrl DIR, the folder of its repository that holds ppo.py"
        if not (folder / entry.program).is_file():
            return f"there is no {entry.program} in {str(folder)!r}; give --cleanrl DIR"
    python = selection.python_of(entry)
    needed = entry.needs if entry.peer is None else (*PEERS[entry.peer].modules, *entry.needs)
    missing = missing_modules(python, needed) if needed else ()
    if not missing:
        return None
    packages = [name.replace("_", "-").replace("cv2", "opencv-python-headless") for name in missing]
    install = " ".join(packages) if entry.peer is None else _install(entry.peer, packages)
    return (
        f"{python} does not find {', '.join(missing)}; install: {python} -m pip install {install}, "
        f"or name another Python: --python {entry.peer or _METTA}=PATH"
    )


def _install(peer: str, packages: list[str]) -> str:
    known = PEERS[peer].install
    modules = {name.replace("_", "-") for name in PEERS[peer].modules}
    return " ".join([known, *(name for name in packages if name not in modules)])


def _job(entry: Entry, workload: Workload, selection: Selection) -> Job:
    python, steps = selection.python_of(entry), selection.steps or entry.steps
    environment = dict(_ONE_THREAD) if entry.one_thread else {}
    settings = {**workload.settings, **entry.settings}
    told = json.dumps({"settings": settings, "steps": steps, **entry.details})
    if entry.peer == "cleanrl":
        assert selection.cleanrl is not None
        return _cleanrl_job(entry, settings, steps, python, selection.cleanrl, environment)
    if entry.peer is not None:
        return Job(entry.name, (python, str(peer_script(entry.peer)), told), environment)
    # jobs run in folders of their own, where this metta may not be found
    environment |= _found_first(_PACKAGES)
    command = (python, "-m", f"benchmarks.speed.jobs.{entry.program}", told)
    return Job(entry.name, command, environment)


def _found_first(folder: Path) -> dict[str, str]:
    """What lets an interpreter find the modules in a folder before all others."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _cleanrl_job(
    entry: Entry,
    settings: Mapping[str, float],
    steps: int,
    python: str,
    folder: Path,
    environment: dict[str, str],
) -> Job:
    """CleanRL's own script; it prints its speed after every iteration."""
    folder = folder.absolute()
    options: dict[str, object] = {
        **({"--env-id": entry.details["env"]} if "env" in entry.details else {}),
        "--num-envs": settings["num_envs"],
        "--num-steps": settings["horizon"],
        "--learning-rate": settings["learning_rate"],
        "--clip-coef": settings["clip_coef"],
        "--ent-coef": settings["ent_coef"],
        "--total-timesteps": steps,
    }
    words = [str(word) for option in options.items() for word in option]
    environment = {**environment, **_found_first(folder.parent)}  # for its cleanrl_utils
    return Job(
        entry.name,
        (python, str(folder / entry.program), *words, "--no-cuda"),
        environment,
        step_line="SPS:",
        steps_per_line=int(settings["num_envs"] * settings["horizon"]),
    )
