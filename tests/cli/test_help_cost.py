"""`metta --help` answers at once, because it loads little."""

import json
import subprocess
import sys

LOADED = """
import json, sys
from metta.cli.main import main
try:
    main(["--help"])
except SystemExit:
    print()
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = {"torch", "numpy", "pydantic", "yaml", "gymnasium", "rich", "sqlalchemy"}
LIGHT = ("metta.cli", "metta.errors", "metta.lazy", "metta.untrusted")


def test_help_loads_no_library_and_no_part_that_trains() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "metta.cli.main" in loaded
    assert HEAVY & set(loaded) == set()
    own = [name for name in loaded if name.startswith("metta.")]
    assert [name for name in own if not name.startswith(LIGHT)] == []
    assert [name for name in own if name.startswith("metta.cli.commands.")] == []
