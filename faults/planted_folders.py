"""Files, links, pipes, devices and names to plant in the folder of a run, for `hostile_folders`."""

import functools
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from metta.store.checkpoints.manifest import sealed

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\b\u202e"
NEWEST = "checkpoints/epoch_000003"
FILES = [
    "config.yaml", "run.json", "provenance.json", "events.jsonl", "metrics.csv", "run.lock",
    f"{NEWEST}/manifest.json", f"{NEWEST}/policy.safetensors", f"{NEWEST}/state.safetensors",
    f"{NEWEST}/state.json", "checkpoints/scores.json", "replays/epoch_000002-training-CartPole-v1.replay",
    "wandb/run-id.txt",
]  # fmt: skip
FOLDERS = ["checkpoints", NEWEST, "replays", "wandb", "wandb/cache", "stats", "tensorboard"]
_LARGE = 3 * 2**30


class Plant(NamedTuple):
    """One thing to plant."""

    name: str
    put: Callable[[Path], Any]
    """Gets the folder of the run; beside the folder of runs lie `outside` and a victim's run in it."""


def plants() -> list[Plant]:
    """All there are."""
    return [*_kinds(), *_folders(), *_wrong_types(), *_foreign(), *_texts(), *_names()]


def _remove(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _link(target: str, path: Path) -> None:
    _remove(path).symlink_to(target)


def _socket(path: Path) -> None:
    here = Path.cwd()  # a socket's address is short
    os.chdir(_remove(path).parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with _remove(path).open("wb") as file:
        file.truncate(_LARGE)


def _chain(path: Path) -> None:
    """Forty links, one after the other, out of the run."""
    target = path.parents[len(path.parents) - 1] / "dev" / "zero"
    for number in range(30):
        link = path.with_name(f"{path.name}.{number}")
        _remove(link).symlink_to(target)
        target = link
    _link(str(target), path)


def _device(path: Path) -> None:
    try:
        os.mknod(_remove(path), 0o20666, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        path.symlink_to("/dev/zero")


def _kinds() -> Iterator[Plant]:
    kinds: dict[str, Callable[[Path], Any]] = {
        "a pipe": lambda path: os.mkfifo(_remove(path)),
        "a link to /dev/zero": functools.partial(_link, "/dev/zero"),
        "a link to stdin": functools.partial(_link, "/dev/stdin"),
        "a device": _device,
        "a socket": _socket,
        "a folder": lambda path: _remove(path).mkdir(),
        "a link to itself": lambda path: _link(path.name, path),
        "a link to nothing": functools.partial(_link, "nothing"),
        "a link to a secret": lambda path: _link(str(_outside(path) / "secret.txt"), path),
        "many links": _chain,
        "3 GB of nothing": _sparse,
        "no bytes": lambda path: _remove(path).write_bytes(b""),
        "one long line": lambda path: _remove(path).write_bytes(b"{" + b"[" * 2**24),
    }
    for name in FILES:
        for kind, put in kinds.items():
            yield Plant(f"{name}: {kind}", lambda run, put=put, name=name: put(run / name))


def _outside(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == "runs").parent / "outside"


def _folders() -> Iterator[Plant]:
    for name in FOLDERS:
        yield Plant(f"{name}: linked to the victim", lambda run, name=name: _lead_out(run, name))
        yield Plant(f"{name}: a file", lambda run, name=name: _remove(run / name).write_bytes(b"x"))
        yield Plant(f"{name}: a circle", lambda run, name=name: _link(".", run / name))


def _lead_out(run: Path, name: str) -> None:
    _link(str(_outside(run / "x") / "victim" / name), run / name)


def _wrong_types() -> Iterator[Plant]:
    values = ["[]", '"x"', "5", "null", '{"name": 5}', "[[[]]]", '{"": {}}', "1e999", "NaN"]
    names = [*FILES[:4], "run.lock", f"{NEWEST}/manifest.json", f"{NEWEST}/state.json"]
    for name in [*names, "checkpoints/scores.json"]:
        for value in values:
            yield Plant(
                f"{name}: {value}",
                lambda run, name=name, value=value: _remove(run / name).write_text(value + "\n"),
            )
    for payload in ({}, [], 5, {"epoch": [], "agent_step": {}, "metrics": 3}, {"scores": "x"},
                    {"epoch": "x", "scores": {"simulation_scores": {"a/b": "x"}}}):  # fmt: skip
        for kind in ("metrics", "evaluation", "policy", "run_start"):
            yield Plant(
                f"events.jsonl: {kind} {json.dumps(payload)}",
                lambda run, kind=kind, payload=payload: _add_event(run, kind, payload),
            )
    for about in (
        {"settings": []},
        {"settings": {"trainer.seed": 5}},
        {"settings": {"a": {"value": 1}}},
    ):
        yield Plant(
            f"provenance.json: {about}",
            lambda run, about=about: (run / "provenance.json").write_text(json.dumps(about)),
        )


def _add_event(run: Path, kind: str, payload: Any) -> None:
    log = run / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    event = {**json.loads(lines[-1]), "kind": kind, "payload": payload}
    log.write_text("".join([*lines, json.dumps(event) + "\n"]))


def _foreign() -> Iterator[Plant]:
    for kind, below in (("checkpoint_dir", "checkpoints"), ("replay_dir", "replays")):
        for how in ("absolute", "relative", "link"):
            yield Plant(
                f"run.json: {kind} of the victim, {how}",
                lambda run, kind=kind, below=below, how=how: _point(run, kind, below, how),
            )
    yield Plant("run.json: id of the victim, and its folder", _steal_id)
    yield Plant("run.json: an id that is none", lambda run: _say(run, {"id": "../../x"}))
    yield Plant("a checkpoint of the victim", lambda run: shutil.copytree(
        _outside(run / "x") / "victim" / NEWEST, run / "checkpoints" / "epoch_000009"))  # fmt: skip
    yield Plant("a checkpoint under another epoch", lambda run: (run / NEWEST).rename(
        run / "checkpoints" / "epoch_000120"))  # fmt: skip
    yield Plant("a checkpoint of the victim under its own name", _swap_checkpoint)


def _say(run: Path, news: dict[str, Any]) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, **news}))


def _point(run: Path, kind: str, below: str, how: str) -> None:
    target = _outside(run / "x") / "victim" / below
    if how == "link":
        _link(str(target), run / "mine")
    places = {"absolute": str(target), "relative": os.path.relpath(target, run), "link": "mine"}
    _say(run, {kind: places[how]})


def _steal_id(run: Path) -> None:
    victim = _outside(run / "x") / "victim"
    stolen = json.loads((victim / "run.json").read_text())["id"]
    _say(run, {"id": stolen, "checkpoint_dir": str(victim / "checkpoints")})


def _swap_checkpoint(run: Path) -> None:
    shutil.copytree(_outside(run / "x") / "victim" / NEWEST, _remove(run / NEWEST))


def _texts() -> Iterator[Plant]:
    for old, new in (("env: CartPole-v1", f"env: {json.dumps(ESCAPES)}"),
                     ("experiment_name: ", f"experiment_name: {json.dumps(ESCAPES)} #"),
                     ("  seed: ", f"  {json.dumps(ESCAPES)}: ")):  # fmt: skip
        yield Plant(f"config.yaml: escapes after {old.strip()!r}", lambda run, old=old, new=new: _edit(
            run / "config.yaml", old, new))  # fmt: skip
    for key in ("own_environment", "own_policy", "checkpoint_dir", "replay_dir", "name", "id"):
        yield Plant(f"run.json: escapes as {key}", lambda run, key=key: _say(run, {key: ESCAPES}))
    yield Plant("run.lock: escapes", lambda run: (run / "run.lock").write_text(
        json.dumps({"pid": 1, "host": ESCAPES, "started": ESCAPES})))  # fmt: skip
    yield Plant("events.jsonl: escapes", lambda run: _add_event(run, "policy", {
        "epoch": 1, "agent_step": 1, "uri": ESCAPES}))  # fmt: skip
    yield Plant("events.jsonl: a reason with escapes", lambda run: _add_event(run, "run_end", {
        "outcome": "failed", "reason": ESCAPES}))  # fmt: skip
    yield Plant(
        "events.jsonl: no event", lambda run: (run / "events.jsonl").write_text(ESCAPES + "\n")
    )
    yield Plant("metrics.csv: escapes", lambda run: (run / "metrics.csv").write_text(
        f"agent_step,epoch,{ESCAPES}\n1,2,3\n"))  # fmt: skip
    yield Plant(
        "metrics.csv: no text", lambda run: (run / "metrics.csv").write_bytes(b"\xff\xfe\n")
    )
    yield Plant("manifest.json: escapes in the metadata", functools.partial(
        _reseal, lambda manifest: manifest["metadata"].update({"name": ESCAPES, ESCAPES: 1})))  # fmt: skip
    for key, value in (
        ("epoch", 10**90),
        ("agent_step", 10**90),
        ("run_id", ESCAPES),
        ("format", ESCAPES),
    ):
        yield Plant(f"manifest.json: another {key}", functools.partial(
            _reseal, lambda manifest, key=key, value=value: manifest.update({key: value})))  # fmt: skip
    yield Plant("wandb/run-id.txt: a path", lambda run: _remove(run / "wandb" / "run-id.txt").write_text(
        "../../../x"))  # fmt: skip


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


def _reseal(change: Callable[[dict[str, Any]], Any], run: Path) -> None:
    """A manifest that was changed by someone who knows how it is sealed."""
    path = run / NEWEST / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(sealed(manifest)))


def _names() -> Iterator[Plant]:
    for name in (
        ESCAPES,
        "epoch_" + "9" * 200,
        "epoch_000001.99999999999",
        "epoch_-00001",
        "-rf",
        "\n",
    ):
        yield Plant(f"checkpoints/{ascii(name)[:40]}", lambda run, name=name: (
            run / "checkpoints" / name).mkdir())  # fmt: skip
        yield Plant(f"replays/{ascii(name)[:40]}.replay", lambda run, name=name: (
            run / "replays" / f"{name}.replay").write_bytes(b"x"))  # fmt: skip
    for name in (".tmp-" + "0" * 32, ".tmp-x"):
        yield Plant(f"checkpoints/{name} leads out", lambda run, name=name: _link(
            str(_outside(run / "x") / "victim"), run / "checkpoints" / name))  # fmt: skip
