"""A disk that is full, broken or read-only, at every operation of a save that removes an old checkpoint.

Each system call that can fail is made to fail, once and from then on: the save must say so, by an error or,
where only old checkpoints could not be removed or read, by a warning; what is there must be whole; and all
must work again when the disk does. Then the same of a configuration, of files that may not grow (a
quota), and of a real file system that is too small and goes read-only.
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from faults import saved_run
from faults.crash_points import changes
from faults.saved_run import IN_DOUBT, NOT_SAVED, SAVED, SAVED_WITH_WARNING
from faults.traced_save import SAVE, Act, Call, Traced, Tracer, wait_for_strace
from faults.trial import OK, Trial
from metta.files import TEMPORARY
from metta.train.parsing.yaml_text import dump_yaml, write_yaml

NAME = "disk_errors"
_FULL, _BROKEN, _READ_ONLY, _DENIED = "ENOSPC", "EIO", "EROFS", "EACCES"
_ERRORS = {
    "write": [_FULL, _BROKEN],
    "pwrite64": [_FULL, _BROKEN],
    "ftruncate": [_FULL, _BROKEN],
    "fsync": [_FULL, _BROKEN],
    "read": [_BROKEN],
    "getdents64": [_BROKEN],
    "openat": [_BROKEN, _DENIED],
    "mkdir": [_FULL, _BROKEN, _READ_ONLY, _DENIED],
    "rename": [_FULL, _BROKEN, _READ_ONLY, _DENIED],
    "renameat": [_FULL, _BROKEN, _READ_ONLY, _DENIED],
    "unlinkat": [_BROKEN, _READ_ONLY, _DENIED],
    "unlink": [_BROKEN, _READ_ONLY, _DENIED],
    "rmdir": [_BROKEN, _READ_ONLY, _DENIED],
}
_TINY_DISK = "256k"
_NEW_USERS, _NEW_MOUNTS = 0x10000000, 0x00020000  # flags of unshare(2)


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Every fault, or about `count` of those of the calls that change the disk, and all of the rest."""
    with Tracer(folder) as tracer:
        for act, judge, wanted in ((SAVE, judge_save, count), (CONFIG, judge_config, count // 4)):
            points = list(faults_of(tracer.run(act).calls))
            if count:
                points = [point for point in points if changes(point[0])]
            for call, error, when in points[:: max(1, len(points) // wanted if count else 1)]:
                traced = tracer.run(act, f"{call.name}:error={error}:when={when}")
                yield judge(call, error, traced, seed, lasts=when.endswith("+"))
        for limit in (0, 1, 600, 1000, 1600, 2000, 2400):
            yield save_within(tracer, limit, seed)
        if why_no_tiny_disk() is None:
            yield from on_tiny_disk(tracer, folder / "tiny", seed)


def faults_of(calls: list[Call]) -> Iterator[tuple[Call, str, str]]:
    for call in calls:
        creates = call.name == "openat" and "O_CREAT" in call.text
        for error in [*_ERRORS.get(call.name, []), *([_FULL, _READ_ONLY] if creates else [])]:
            yield call, error, f"{call.number}"
            yield call, error, f"{call.number}+"


def judge_save(call: Call, error: str, traced: Traced, seed: int, *, lasts: bool) -> Trial:
    code = traced.code
    must_be_saved = {SAVED: True, SAVED_WITH_WARNING: True, NOT_SAVED: None if lasts else False}
    left = leftovers(traced.folder) - {saved_run.LEFT}
    outcome, digest = saved_run.examine(traced.folder, saved=must_be_saved.get(code))
    if outcome == OK and code not in (SAVED_WITH_WARNING, NOT_SAVED, IN_DOUBT):
        outcome = "silent" if code == SAVED else f"the save ended with code {code}"
    if outcome == OK and left and code == NOT_SAVED and not lasts:
        outcome = f"{sorted(left)} are left"
    return verdict("save", call, error, traced, seed, outcome, digest, lasts=lasts)


def judge_config(call: Call, error: str, traced: Traced, seed: int, *, lasts: bool) -> Trial:
    path, outcome = traced.folder / "config.yaml", OK
    if path.read_text() not in (dump_yaml(_OLD), dump_yaml(_NEW)):
        outcome = "the file is neither the old one nor the new one"
    elif traced.code != NOT_SAVED:
        outcome = "silent" if traced.code == SAVED else f"it ended with code {traced.code}"
    elif leftovers(traced.folder) and not lasts:
        outcome = f"{sorted(leftovers(traced.folder))} are left"
    elif write_yaml(path, _NEW).read_text() != dump_yaml(_NEW):
        outcome = "the next write does not work"
    return verdict("config", call, error, traced, seed, outcome, None, lasts=lasts)


def verdict(
    what: str,
    call: Call,
    error: str,
    traced: Traced,
    seed: int,
    outcome: str,
    digest: str | None,
    *,
    lasts: bool,
) -> Trial:
    if not any("INJECTED" in seen.text for seen in traced.calls):
        outcome = "nothing was injected"
    point = f"{what}: {error} at {call}{' and after' if lasts else ''}"
    return Trial(NAME, seed, point, outcome, digest, {"code": traced.code})


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(TEMPORARY)}


# A configuration.

_OLD, _NEW = {"seed": 1, "notes": "x" * 500}, {"seed": 2, "notes": "y" * 900}


def write_old_config(folder: Path) -> None:
    write_yaml(folder / "config.yaml", _OLD)


def stop_and_write_config(folder: str) -> None:
    """In the child: write once."""
    wait_for_strace()
    try:
        write_yaml(Path(folder) / "config.yaml", _NEW)
    except OSError:
        raise SystemExit(NOT_SAVED) from None


CONFIG = Act(write_old_config, "faults.disk_errors:stop_and_write_config")


# Files that may not grow.


def save_with_limit(folder: str, limit: int) -> None:
    """In the child: save where no file may have more than `limit` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    raise SystemExit(saved_run.save(folder))


def save_within(tracer: Tracer, limit: int, seed: int) -> Trial:
    folder = tracer.new_folder(SAVE)
    start = tracer.zygote.start
    code = start("faults.disk_errors:save_with_limit", folder=str(folder), limit=limit).wait()
    outcome, digest = saved_run.examine(folder, saved=False)
    if outcome == OK and code != NOT_SAVED:
        outcome = f"the save ended with code {code}"
    return Trial(NAME, seed, f"save: files of at most {limit} bytes", outcome, digest)


# A real file system, in a separate mount namespace.


def why_no_tiny_disk() -> str | None:
    """Why no file system can be mounted here, or None where it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", f"size={_TINY_DISK}", "tmpfs", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no file system can be mounted: {done.stderr.strip()}" if done.returncode else None


def on_tiny_disk(tracer: Tracer, folder: Path, seed: int) -> Iterator[Trial]:
    """Mount and fill it in a separate process, which alone can see it."""
    folder.mkdir()
    log = folder.with_suffix(".jsonl")
    use = tracer.zygote.start("faults.disk_errors:use_tiny_disk", disk=str(folder), log=str(log))
    code = use.wait()
    assert code == 0, f"the process that mounted a small file system ended with code {code}"
    for line in log.read_text().splitlines():
        point, code, expected, outcome, digest = json.loads(line)
        if outcome == OK and code != expected:
            outcome = f"the save ended with code {code}"
        yield Trial(NAME, seed, f"tiny disk {point}", outcome, digest, {"code": code})


def use_tiny_disk(disk: str, log: str) -> None:
    """In the child: save where there is room for 0, 1, 2... pages, and where nothing may be written."""
    enter_own_namespace()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_TINY_DISK}", "tmpfs", disk], check=True)
    folder, ballast, pages, code = Path(disk) / "run", Path(disk) / "ballast", 0, NOT_SAVED
    with Path(log).open("w") as stream:
        while code != SAVED:
            saved_run.prepare(folder)
            about = os.statvfs(disk)
            ballast.write_bytes(bytes(about.f_bsize * (about.f_bavail - pages)))
            code = saved_run.save(folder)
            ballast.unlink()
            expected = NOT_SAVED if pages < 4 else code  # four files
            print(look(folder, f"with {pages} free pages", code, expected), file=stream)
            pages += 1
        saved_run.prepare(folder)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        code = saved_run.save(folder)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        print(look(folder, "gone read-only", code, NOT_SAVED), file=stream)


def enter_own_namespace() -> None:
    """Give this process its own mount namespace, in a user namespace so that it need not be root."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USERS | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "cannot create a namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def look(folder: Path, point: str, code: int, expected: int) -> str:
    outcome, digest = saved_run.examine(folder, saved=code == SAVED)
    shutil.rmtree(folder)
    return json.dumps([point, code, expected, outcome, digest])
