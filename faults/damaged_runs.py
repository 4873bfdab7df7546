"""Files of a run are damaged, and then ``metta resume`` is called: it must report it, or change nothing.

A run is killed after epoch 4 of 6. Each trial damages one file of a copy (all but the event log and
``metrics.csv``) and resumes it. It went well where metta refused with one of its errors, or warned of the
damaged file, or where the finished run is that of an undisturbed copy to the bit: state, rows, settings.
"""

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import training
from faults.run_damage import Damage, all_damages
from faults.training import DieAfter, comparable_rows
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.cli.main import main
from metta.rl.clean_trainer import Trainer
from metta.stateful import digest_of
from metta.store.checkpoints.files import read_newest_checkpoint
from metta.store.checkpoints.late_scores import add_late_score
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

_SETTINGS = {
    "total_timesteps": 96, "num_envs": 2, "horizon": 8, "update_epochs": 1, "num_minibatches": 1,
    "hidden_size": 8, "monitor_seconds": 0, "checkpoint_interval": 2, "eval_episodes": 2,
    "evaluate_interval": 3, "replay_interval": 3, "gamma": 0.98, "threads": 1, "verbose": False,
}  # fmt: skip
_KILLED_AFTER = 4
_SECONDS = 120.0
_AT_ONCE = 2
_PRELOADED = ["faults.damaged_runs:warm_up", "matplotlib.pyplot"]
_EVERY_REAL_PROCESS = 14
"""One trial in so many is a new process, as a user starts it; the others are forked."""
_NOT_COMPARED = ("conditions", "policy_tracker", "environments")
_TYPED = re.compile(r"^metta: \w+Error: ", re.MULTILINE)


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """All damages, or `count` of them at equal distances."""
    damages = all_damages(seed)
    chosen = [damages[i * len(damages) // count] for i in range(count)] if count else damages
    with contextlib.ExitStack() as stack:
        zygotes = queue.SimpleQueue[Zygote]()
        for _ in range(_AT_ONCE):
            zygotes.put(stack.enter_context(Zygote(_PRELOADED, cwd=Path(__file__).parents[1])))
        _prepare(zygotes, folder)

        def play(number: int, damage: Damage) -> Trial:
            is_real = count == 0 and number % _EVERY_REAL_PROCESS == 0
            zygote = zygotes.get()
            try:
                place = folder / f"damaged-{number}"
                return _trial(None if is_real else zygote, damage, place, seed)
            finally:
                zygotes.put(zygote)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(play, range(len(chosen)), chosen)


def _prepare(zygotes: "queue.SimpleQueue[Zygote]", folder: Path) -> None:
    """The run to be damaged, another one, and the first as it ends undamaged."""
    zygote = zygotes.get()
    for name, number in (("run", 1), ("other", 2)):
        begun = zygote.start("faults.damaged_runs:begin", folder=str(folder / name), seed=number)
        assert begun.wait(_SECONDS) == -9
        add_late_score(folder / name / "checkpoints", 2, 1.5 * number)
    whole = shutil.copytree(folder / "run", folder / "whole")
    expected = _resumed(zygote, whole)
    assert expected == (0, ""), expected
    zygotes.put(zygote)


def _trial(zygote: Zygote | None, damage: Damage, place: Path, seed: int) -> Trial:
    folder = place.parent
    shutil.copytree(folder / "run", place)
    damage.harm(place, folder / "other")
    code, said = _resumed(zygote, place)
    outcome, how = verdict(damage, code, said, folder / "whole", place)
    shutil.rmtree(place)
    detail = {"how": how, "said": said[-400:], "real_process": zygote is None}
    return Trial("damaged_runs", seed, damage.point, outcome, detail=detail)


def verdict(damage: Damage, code: int, said: str, whole: Path, run: Path) -> tuple[str, str]:
    """ "ok" or what went wrong, and how the damage was met: refused, warned of, or harmless."""
    if "Traceback" in said or code < 0 or (code and not _TYPED.search(said)):
        return f"ended with {code}, without an error of metta's own", ""
    if code:
        return OK, "refused"
    named = Path(damage.file).name if damage.file != "a replay" else ".replay"
    if "metta: warning:" in said and named in said:
        return OK, "warned of"
    difference = _difference(whole, run)
    return (f"silent: {difference}", "") if difference else (OK, "harmless")


def _difference(whole: Path, run: Path) -> str:
    """In what two finished runs differ; nothing is the empty text."""
    parts = [_state_of(whole), _state_of(run)]
    if parts[0] != parts[1]:
        return f"other {[name for name in parts[0] if parts[0][name] != parts[1].get(name)]}"
    if comparable_rows(whole) != comparable_rows(run):
        return "other rows of metrics"
    if (whole / "config.yaml").read_text() != (run / "config.yaml").read_text():
        return "another config.yaml"
    return ""


def _state_of(run: Path) -> dict[str, str]:
    newest = read_newest_checkpoint(run / "checkpoints")
    assert newest is not None
    about = {"epoch": str(newest.epoch), "score": str(newest.score)}
    parts = newest.snapshot.items()
    return about | {name: digest_of(part) for name, part in parts if name not in _NOT_COMPARED}


def _resumed(zygote: Zygote | None, run: Path) -> tuple[int, str]:
    """Exit code and standard error of ``metta resume``."""
    told = run.with_suffix(".told")
    if zygote is not None:
        child = zygote.start("faults.damaged_runs:resume", folder=str(run), told=str(told))
        return child.wait(_SECONDS), told.read_text()
    command = [sys.executable, "-m", "metta.cli.main", "resume", str(run)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables, timeout=_SECONDS
    )
    return done.returncode, done.stderr


def begin(folder: str, seed: int) -> None:
    """A run that kills itself after epoch 4, when that is saved."""
    config = apply_settings(TrainingConfig(), {**_SETTINGS, "seed": seed})
    with Trainer(config, run_dir=folder) as trainer:
        trainer.add_hook(DieAfter(_KILLED_AFTER))
        trainer.train()


def resume(folder: str, told: str) -> None:
    """The command, with its output in a file."""
    with open(told, "w") as said, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(said.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
        raise SystemExit(main(["resume", folder]))


def warm_up() -> None:
    """Import what a resume imports late."""
    training.warm_up()
