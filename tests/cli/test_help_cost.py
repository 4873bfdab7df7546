"""`metta --help` answers at once: it loads little, and does little with it."""

import json
import os
import subprocess
import sys

MOST = 1.75
"""CPU time of the help, over that of importing the libraries that it loads."""
TRIES = 9

HELP = "from metta.cli.main import main; main(['--help'])"
"""What the installed command does."""
LOADED = """
import sys
before = set(sys.modules)
from metta.cli.main import build_parser
build_parser(needed=[]).format_help()
import json
print(json.dumps(sorted(m for m in set(sys.modules) - before if m.split(".")[0] != "metta")))
"""


def cpu_seconds(*arguments: str) -> float:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def test_help_costs_little_more_than_its_libraries_when_it_is_asked_for() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    libraries = json.loads(listed.stdout)
    assert not {"torch", "numpy", "pydantic", "yaml", "gymnasium"} & set(libraries)
    imports = "; ".join(f"import {name}" for name in libraries)
    helps, plain = [], []
    for _ in range(TRIES):  # in turns, and the least of each: a busy machine only adds
        helps.append(cpu_seconds("-c", HELP))
        plain.append(cpu_seconds("-c", imports))
    assert min(helps) <= MOST * min(plain)
