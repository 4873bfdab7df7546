"""Code planted wherever a process of metta might look for some; none of it may run.

A trial is one planted file and one command: each file writes its own canary, so that one command tests
hundreds of them. `modules` lie in the current folder, which is a run's. `headers` lie where a compiler
without a private folder looks, put there by a second user of the machine. `parents` are folders above the
cache that others can write to, with a package of the second user's inside.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from faults.second_user import USER, as_second_user, can_change_user
from faults.trial import OK, Trial

SMALL = ["num_envs=2", "n_steps=16", "hidden_size=8", "total_timesteps=64"]
WORKING = ["num_workers=2", "eval_episodes=1", "evaluate_interval=1", "evaluation.where=process"]
COMPILED = ["numerics.driver=step", "--eval-episodes", "0"]
_LIBRARIES = [
    "cloudpickle", "gymnasium", "matplotlib", "metta", "numpy", "psutil", "rich", "safetensors",
    "sitecustomize", "sympy", "torch", "tqdm", "typing_extensions", "usercustomize", "wandb", "yaml",
]  # fmt: skip
_PROGRAMS = ["g++", "clang++", "as", "ld", "cc1plus", "collect2", "openssl", "python3", "python"]
_EVIL = """#include <stdio.h>
__attribute__((constructor)) static void planted() {{ if (FILE* f = fopen("{}", "w")) fclose(f); }}
"""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """About `count` planted files; everything at full size, modules alone at a small one."""
    folder = folder.resolve()
    for point, outcome in _campaign(count, folder):
        yield Trial("planted_code", seed, point, outcome)


def _campaign(count: int, folder: Path) -> Iterator[tuple[str, str]]:
    run = trained_run(folder)
    yield from modules(run, "resume", ["resume", ".", "total_timesteps=128"], folder)
    if count < len(module_names()):
        return
    for name, words in other_commands(folder).items():
        yield from modules(run, name, words, folder)
    if can_change_user() and shutil.which("g++"):
        yield from headers(folder)
        yield from parents(folder)


def metta(
    words: list[str], cwd: Path, folder: Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """The command as users run it."""
    environment = {**os.environ, "METTA_CACHE_DIR": str(folder / "cache"), **variables}
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        environment.pop(name, None)
    program = Path(sys.executable).with_name("metta")
    return subprocess.run(
        [program, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def trained_run(folder: Path) -> Path:
    """A short run with workers and background evaluation."""
    words = ["train", "CartPole-v1", "--output", str(folder), "--run", "run", *SMALL, *WORKING]
    ended = metta(words, folder, folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "run"


def module_names() -> list[str]:
    return sorted({*sys.stdlib_module_names, *_LIBRARIES})


def plant_modules(run: Path, canaries: Path) -> list[str]:
    """A module for every name; libraries are packages."""
    canaries.mkdir()
    for name in module_names():
        code = f"open({str(canaries / name)!r}, 'w').close()\n"
        if name in _LIBRARIES and "custom" not in name:
            (run / name).mkdir(exist_ok=True)
            (run / name / "__init__.py").write_text(code)
        else:
            (run / f"{name}.py").write_text(code)
    return module_names()


def modules(run: Path, name: str, words: list[str], folder: Path) -> Iterator[tuple[str, str]]:
    place, canaries = folder / f"planted-{name}", folder / f"canaries-{name}"
    shutil.copytree(run, place)
    planted = plant_modules(place, canaries)
    ended = metta(words, place, folder)
    for module in planted:
        yield f"module {module}, {name}", verdict(canaries / module, ended)
    shutil.rmtree(place)


def verdict(canary: Path, ended: "subprocess.CompletedProcess[str]") -> str:
    if canary.exists():
        return "it ran"
    if ended.returncode:
        return f"the command ended with {ended.returncode}: {ended.stderr[-300:]}"
    return OK


def other_commands(folder: Path) -> dict[str, list[str]]:
    """Each starts processes of another kind."""
    import torch

    torch.save({"weight": torch.ones(2)}, folder / "weights.pt")
    target = str(folder / "weights.safetensors")
    train = ["train", "CartPole-v1", "--output", str(folder / "others"), *SMALL]
    return {
        "train": [*train, *WORKING],
        "eval": ["eval", ".", "--episodes", "2"],
        "certify": ["certify", "CartPole-v1", *SMALL[:3], "--epochs", "2", "--kills", "1"],
        "profile": ["profile", "CartPole-v1", *SMALL[:3], "--epochs", "1", "--warmup", "1"],
        "convert": ["convert", "--i-trust-this-file", str(folder / "weights.pt"), target],
    }


def headers(folder: Path) -> Iterator[tuple[str, str]]:
    """A real compilation, with headers and programs planted where it would find them."""
    canaries, temporary, cwd = (folder / name for name in ("canaries-headers", "tmp", "cwd"))
    for place in (canaries, temporary, cwd):
        place.mkdir()
        place.chmod(0o1777)
    folder.chmod(0o711)
    names = learnt_headers(folder)
    as_second_user(lambda: plant_headers(names, canaries, temporary, cwd))
    words = [
        "train",
        "CartPole-v1",
        "--output",
        str(folder),
        "--run",
        "compiled",
        *SMALL,
        *COMPILED,
    ]
    # both variables mean the current folder by an empty entry
    variables = {"TMPDIR": str(temporary), "PATH": f".:{os.environ['PATH']}:", "CPATH": ":"}
    ended = metta(words, cwd, folder, **variables)
    for path in [*temporary.rglob("*"), *cwd.rglob("*")]:
        if path.is_file() and path.stat().st_uid == USER:
            canary = canaries / canary_name(path)
            yield f"compiler: {canary.name}", verdict(canary, ended)
    left = list((folder / "cache").glob("scratch/*"))
    left += [path for path in temporary.rglob("*") if path.stat().st_uid != USER]
    yield "compiler: what is left", f"left {left}" if left else OK


def plant_headers(names: list[str], canaries: Path, temporary: Path, cwd: Path) -> None:
    below = temporary / "torchinductor_root" / "precompiled_headers"
    places = [below / name for name in names] + [below / f"{name}.gch" for name in names]
    for name in ("cpp_prefix.h", "Python.h", "stdlib.h", "vector", "torch/all.h", "omp.h"):
        places += [cwd / name, temporary / name]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_EVIL.format(canaries / canary_name(path)))
    for name in _PROGRAMS:
        (cwd / name).write_text(f"#!/bin/sh\n: > '{canaries / canary_name(cwd / name)}'\n")
        (cwd / name).chmod(0o755)


def canary_name(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


def learnt_headers(folder: Path) -> list[str]:
    """What the second user finds out by compiling anything with the same torch and compiler."""
    place = folder / "learnt"
    place.mkdir()
    code = (
        "import sys, torch; x = torch.ones(8);"
        "f = type('F', (torch.nn.Module,), {'forward': lambda self, x: (x * 2.0).sin()})();"
        "torch._inductor.aoti_compile_and_package(torch.export.export(f, (x,)), package_path=sys.argv[1])"
    )
    own = {"TMPDIR": str(place), "TORCHINDUCTOR_CACHE_DIR": str(place / "cache")}
    command = [sys.executable, "-P", "-c", code, str(place / "made.pt2")]
    subprocess.run(command, env={**os.environ, **own}, check=True, capture_output=True)
    found = sorted(path.name for path in place.rglob("precompiled_headers/*.h"))
    assert found, "torch keeps no precompiled headers: there is nothing to plant"
    return found


def parents(folder: Path) -> Iterator[tuple[str, str]]:
    """The package that `headers` had compiled, with the second user's code in it, below unsafe folders."""
    [package] = (folder / "cache" / "graphs").glob("*.pt2")
    canary = folder / "canaries-headers" / "package"
    evil = with_code(package, canary, folder)
    for name, (mode, owner) in {
        "others write": (0o777, 0), "the group writes": (0o775, 0), "others write, not read": (0o733, 0),
        "owned by another": (0o755, USER), "owned by another, hidden": (0o700, USER),
        "owned by another, sticky": (0o1777, USER),
    }.items():  # fmt: skip
        for depth in (0, 1, 2):
            top = folder / f"parent-{name.replace(' ', '-')}-{depth}"
            cache = top.joinpath(*["between"] * depth)
            graphs = cache / "graphs"
            graphs.mkdir(parents=True, mode=0o755)
            plant_package(evil, graphs / package.name)
            os.chown(top, owner, owner)
            top.chmod(mode)
            yield f"cache, {name}, {depth} above", refused(cache, canary, folder)
            top.chmod(0o755)
    yield from linked_cache(folder, canary)


def plant_package(evil: Path, place: Path) -> None:
    """With a checksum that is right."""
    shutil.copy(evil, place)
    place.with_suffix(".sha256").write_text(hashlib.sha256(evil.read_bytes()).hexdigest())


def linked_cache(folder: Path, canary: Path) -> Iterator[tuple[str, str]]:
    sticky = folder / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    as_second_user(lambda: (sticky / "link").symlink_to(folder / "cache"))
    yield "cache, a link of another's", refused(sticky / "link", canary, folder)
    as_second_user(lambda: (sticky / "own").mkdir(mode=0o777))
    yield "cache, another's folder in a sticky one", refused(sticky / "own", canary, folder)
    (sticky / "mine").symlink_to(sticky / "own")
    yield "cache, a link to another's folder", refused(sticky / "mine", canary, folder)


def refused(cache: Path, canary: Path, folder: Path) -> str:
    words = ["train", "CartPole-v1", "--output", str(folder / "refused"), *SMALL, *COMPILED]
    ended = metta(words, folder, folder, METTA_CACHE_DIR=str(cache))
    if canary.exists():
        canary.unlink()
        return "it ran"
    if ended.returncode != 1 or "METTA_CACHE_DIR" not in ended.stderr:
        return f"not refused ({ended.returncode}): {ended.stderr[-300:]}"
    return OK


def with_code(package: Path, canary: Path, folder: Path) -> Path:
    """A copy of a package whose library also writes the canary when it is loaded."""
    source, library, evil = folder / "evil.cpp", folder / "evil.so", folder / "evil.pt2"
    source.write_text(_EVIL.format(canary))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(evil, "w") as new:
        for entry in old.infolist():
            is_library = entry.filename.endswith(".so")
            new.writestr(entry, library.read_bytes() if is_library else old.read(entry))
    return evil
