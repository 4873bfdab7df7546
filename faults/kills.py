"""SIGKILL at random instants of training, again and again, until the run is done all the same.

After every kill the newest checkpoint must be there and readable, and not older than the one before;
at the end the run equals an undisturbed one: digests after every epoch, records of metrics. Every
second kill waits for a save to begin.
"""

import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from faults.splits import compare_runs
from faults.training import CONFIGS, read_phase
from faults.trial import OK, Trial
from faults.zygote import Child, Zygote
from metta.errors import MettaError
from metta.store.checkpoints.files import read_newest_checkpoint

_MAX_WAIT = 20.0


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least `count` kills, in turn over all configurations."""
    random_numbers = random.Random(seed)
    wholes: dict[str, tuple[Path, float]] = {}
    done, turn = 0, 0
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        while done < count:
            name = list(CONFIGS)[turn % len(CONFIGS)]
            if name not in wholes:
                wholes[name] = undisturbed(zygote, name, folder)
            for trial in killed_run(
                zygote, name, wholes[name], folder / f"run-{turn}", seed, random_numbers
            ):
                yield trial
                done += 1
            turn += 1


def undisturbed(zygote: Zygote, name: str, folder: Path) -> tuple[Path, float]:
    """A run that is left alone, and how long it takes."""
    path, begin = folder / f"{name}-whole", time.monotonic()
    code = zygote.start("faults.training:train", name=name, folder=str(path)).wait()
    assert code == 0, f"the undisturbed run {name!r} ended with code {code}"
    return path, time.monotonic() - begin


def killed_run(
    zygote: Zygote,
    name: str,
    whole: tuple[Path, float],
    folder: Path,
    seed: int,
    random_numbers: random.Random,
) -> Iterator[Trial]:
    """One run, killed until it is done; the verdict on the whole of it is in each of its trials."""
    kills: list[tuple[str, str, int]] = []
    newest = 0
    while True:
        child = zygote.start("faults.training:train", name=name, folder=str(folder))
        code = disturb(child, folder, whole[1], random_numbers, in_save=len(kills) % 2 == 0)
        if code == 0:
            break
        phase = read_phase(folder / "phase")
        outcome, newest = look_at(folder, newest) if code == -9 else (f"exit code {code}", newest)
        kills.append((phase, outcome, newest))
        if outcome != OK or len(kills) > 100:
            break
    verdict, digest = compare_runs(whole[0], folder) if code == 0 else ("the run never ended", None)
    for phase, outcome, epoch in kills:
        first_problem = outcome if outcome != OK else verdict
        yield Trial("kills", seed, f"{name}: {phase}", first_problem, digest, {"newest": epoch})


def disturb(
    child: Child, folder: Path, seconds: float, random_numbers: random.Random, *, in_save: bool
) -> int:
    """Kill a child at a random instant, or shortly after a save begins; returns its exit code."""
    deadline = time.monotonic() + random_numbers.uniform(0, seconds)
    if in_save:
        wait_for_save(child, folder, random_numbers.randrange(1, 4))
        time.sleep(random_numbers.uniform(0, 0.004))
    else:
        time.sleep(max(0.0, deadline - time.monotonic()))
    child.kill()
    return child.wait()


def wait_for_save(child: Child, folder: Path, number: int) -> None:
    """Return in the `number`-th save that is seen, or when the child has ended."""
    deadline = time.monotonic() + _MAX_WAIT
    was_saving = True
    while time.monotonic() < deadline:
        is_saving = read_phase(folder / "phase").endswith("+saving")
        if is_saving and not was_saving:
            number -= 1
            if number == 0:
                return
        was_saving = is_saving
        if not is_saving and child.zygote.status_of(child.pid) is not None:
            return


def look_at(folder: Path, newest_before: int) -> tuple[str, int]:
    """What is left of a killed run: its newest checkpoint must load, and be no older than before."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # falling back to an older one would be a loss
            checkpoint = read_newest_checkpoint(folder / "checkpoints")
    except (MettaError, Warning) as error:
        return f"unreadable: {error}", newest_before
    epoch = 0 if checkpoint is None else checkpoint.epoch
    return (OK if epoch >= newest_before else f"lost: {newest_before} -> {epoch}"), epoch
