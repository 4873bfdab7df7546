"""Modules of the user's own go along to a process that does not have them."""

import subprocess
import sys
from pathlib import Path

import pytest

from metta.rl.remote.own_modules import pack_with_modules, unpack_with_modules
from metta.rl.remote.tasks import CollectSetup
from tests.elsewhere.test_shard_worker import setup, trainer  # noqa: F401  # fixtures

OWN = """
import threading
from metta.envs.toy import CorridorEnv
{line}

def length():
    return 7

class Maze(CorridorEnv):
    cells = length()
"""
READER = """
import sys
from pathlib import Path
from metta.envs.env_ids import *
from metta.rl.remote.own_modules import unpack_with_modules
env = unpack_with_modules(Path(sys.argv[1]).read_bytes()).source.env
if isinstance(env, str):
    module, _, name = env.partition(":")
    env = getattr(__import__(module), name)
print(env.cells, env().reset()[0].shape)
"""


@pytest.mark.parametrize(
    ("how", "line", "said"),
    [
        ("class", "", "7 (8,)"),
        ("id", "", "7 (8,)"),
        ("id", "lock = threading.Lock()", "No module named 'own_id_lock'"),
    ],
)
def test_a_class_or_the_module_of_an_id_is_read_where_there_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup: CollectSetup,  # noqa: F811
    how: str, line: str, said: str,
) -> None:  # fmt: skip
    name = f"own_{how}" + "_lock" * bool(line)
    (tmp_path / f"{name}.py").write_text(OWN.format(line=line))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    source = setup.source
    object.__setattr__(source, "env", module.Maze if how == "class" else f"{name}:Maze")
    packed = pack_with_modules(setup)
    assert unpack_with_modules(packed).source.env is not None
    (tmp_path / "packed").write_bytes(packed)
    command = [sys.executable, "-c", READER, str(tmp_path / "packed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
