"""An environment of one's own, named on the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta.envs.env_ids import check_env_id
from metta.errors import EnvError
from tests.children import Ended, ended

_SOURCE = """
import gymnasium
import numpy as np
from own_rules_{tag} import LENGTH


class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {{}}

    def step(self, action):
        self.steps += 1
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, float(action), self.steps == LENGTH, False, {{}}


def make_line():
    return Line()


gymnasium.register("Line{tag}-v0", Line)
"""
_SMALL = ["total_timesteps=64", "num_envs=2", "horizon=16", "verbose=false", "--eval-episodes", "0",
          "final_replay=false"]  # fmt: skip


def _folder(path: Path, tag: str) -> Path:
    """A user's folder: an environment, and a module that it imports."""
    path.mkdir(parents=True, exist_ok=True)
    (path / f"own_envs_{tag}.py").write_text(_SOURCE.format(tag=tag))
    (path / f"own_rules_{tag}.py").write_text("LENGTH = 8\n")
    return path


def _script(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )


def _metta(zygote: Zygote, folder: Path, *words: str) -> Ended:
    """The command in a folder, from which Python imports nothing by itself."""
    arguments = {"words": list(words), "folder": str(folder)}
    return ended(zygote.start("tests.children:metta_in_folder", **arguments), folder)


def test_metta_train_finds_an_environment_when_it_starts_as_a_script(tmp_path: Path) -> None:
    """As users start it: a script does not import from the current folder."""
    start = "import sys; sys.path[:1] = []; from metta.cli.main import main; sys.exit(main())"
    words = ["train", "own_envs_script:Line", "--run", "own", "num_workers=1", *_SMALL]
    done = _script(_folder(tmp_path, "script"), "-c", start, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "own" / "checkpoints").is_dir()


@pytest.mark.parametrize(
    "env", ["own_envs_cli:Linecli-v0", "env=own_envs_cli:Line", "./own_envs_cli.py:Line"]
)
def test_metta_train_finds_an_environment_of_the_current_folder(
    tmp_path: Path, env: str, zygote: Zygote
) -> None:
    words = ["train", env, "--run", "own", "num_workers=1", *_SMALL]
    done = _metta(zygote, _folder(tmp_path, "cli"), *words)
    assert done.code == 0, done.err
    assert (tmp_path / "runs" / "own" / "checkpoints").is_dir()


def test_metta_train_imports_a_file_of_another_folder(tmp_path: Path, zygote: Zygote) -> None:
    _folder(tmp_path / "elsewhere", "file")
    words = ["train", "elsewhere/own_envs_file.py:Line", "--run", "own", *_SMALL]
    done = _metta(zygote, tmp_path, *words)
    assert done.code == 0, done.err
    assert "own_envs_file:Line" in (tmp_path / "runs" / "own" / "config.yaml").read_text()


def test_metta_train_finds_a_module_of_a_package_and_a_file_behind_a_link(
    tmp_path: Path, zygote: Zygote
) -> None:
    source = _folder(tmp_path / "elsewhere", "linked") / "own_envs_linked.py"
    package = tmp_path / "own_pack_linked"
    package.mkdir()
    rules = "from own_rules_linked import LENGTH\n"
    (package / "lines.py").write_text(source.read_text().replace(rules, "LENGTH = 8\n"))
    (tmp_path / "own_rules_linked.py").write_text("LENGTH = 8\n")
    (tmp_path / "own_link.py").symlink_to(source)
    for env in ("own_pack_linked.lines:Line", "own_link.py:Line"):
        done = _metta(zygote, tmp_path, "train", env, *_SMALL)
        assert done.code == 0, done.err


def test_installed_modules_come_first_when_a_folder_has_one_of_the_same_name(
    tmp_path: Path, zygote: Zygote
) -> None:
    folder = _folder(tmp_path, "beside")
    (folder / "tabnanny.py").write_text("raise SystemExit('the one of this folder')\n")
    rules = folder / "own_rules_beside.py"
    rules.write_text("import tabnanny\n\nLENGTH = 8 if tabnanny.verbose == 0 else 9\n")
    done = _metta(zygote, folder, "train", "own_envs_beside:Line", "--run", "own", *_SMALL)
    assert done.code == 0, done.err


def test_a_run_finds_its_environment_again_when_the_command_named_it_before(
    tmp_path: Path, zygote: Zygote
) -> None:
    _folder(tmp_path / "elsewhere", "again")
    own = "elsewhere/own_envs_again.py:Line"
    assert _metta(zygote, tmp_path, "train", own, "--run", "own", *_SMALL).code == 0
    for words in (
        ["eval", "own", "--episodes", "2"],
        ["eval", str(tmp_path / "runs" / "own"), "--episodes", "2"],
        ["enjoy", "own", "-o", "played.replay"],
        ["resume", "own", "total_timesteps=128"],
    ):
        done = _metta(zygote, tmp_path, *words)
        assert done.code == 0, done.err


def test_a_run_names_the_way_out_when_it_was_moved(tmp_path: Path, zygote: Zygote) -> None:
    """A run that came from elsewhere cannot ask for a file to be imported."""
    _folder(tmp_path, "moved")
    words = ["train", "own_envs_moved.py:Line", "--run", "own", *_SMALL]
    assert _metta(zygote, tmp_path, *words).code == 0
    (tmp_path / "runs" / "own").rename(tmp_path / "runs" / "other")
    done = _metta(zygote, tmp_path, "resume", "other", "total_timesteps=128")
    assert done.code == 1
    assert "env=PATH/own_envs_moved.py:CLASS" in done.err.replace("\n", " ")
    named = ["env=own_envs_moved.py:Line", "total_timesteps=128"]
    done = _metta(zygote, tmp_path, "resume", "other", *named)
    assert done.code == 0, done.err
    assert _metta(zygote, tmp_path, "eval", "other", "--episodes", "2").code == 0
    (tmp_path / "runs" / "other").rename(tmp_path / "runs" / "third")
    played = ["enjoy", "third", "-o", "played.replay"]
    assert _metta(zygote, tmp_path, *played).code == 1
    done = _metta(zygote, tmp_path, *played, "--env", "own_envs_moved.py:Line")
    assert done.code == 0, done.err


def test_a_note_imports_nothing_else_when_settings_were_changed(
    tmp_path: Path, zygote: Zygote
) -> None:
    _folder(tmp_path, "edited")
    words = ["train", "own_envs_edited.py:Line", "--run", "own", *_SMALL]
    assert _metta(zygote, tmp_path, *words).code == 0
    (tmp_path / "planted.py").write_text("raise SystemExit('ran')\n")
    config = tmp_path / "runs" / "own" / "config.yaml"
    config.write_text(config.read_text().replace("own_envs_edited:Line", "planted:Line"))
    done = _metta(zygote, tmp_path, "eval", "own", "--episodes", "2")
    assert done.code != 0
    assert "Python does not find the module 'planted'" in done.err.replace("\n", " ")


def test_python_m_metta_is_the_command(tmp_path: Path) -> None:
    """Python runs `metta.__main__`."""
    done = _script(tmp_path, "-m", "metta", "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("metta ")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("own_envs_bad:make_line", "not a subclass of gymnasium.Env"),
        ("own_envs_bad.py:Lime", "(it has Line) nor an id"),
        ("own_envs_bad.py:Lime", "did you mean 'own_envs_bad:Line'"),
        ("own_envs_bad.py", "name the class in it too: own_envs_bad.py:CLASS"),
        ("no_such_file.py:Line", "does not exist"),
        ("no-module.py:Line", "rename the file"),
        ("json.py:Line", "another module 'json'"),
        ("no_such_module:Line", "Python does not find the module 'no_such_module'"),
    ],
)
def test_what_is_not_an_environment_is_refused_before_a_run_begins(
    tmp_path: Path, env: str, says: str, zygote: Zygote
) -> None:
    folder = _folder(tmp_path, "bad")
    for name in ("no-module.py", "json.py"):
        (folder / name).write_text("")
    done = _metta(zygote, folder, "train", env, *_SMALL)
    assert done.code == 2, done.out
    assert says in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
    assert not (folder / "runs").exists()


def test_a_stored_configuration_never_imports_from_the_current_folder(
    tmp_path: Path, zygote: Zygote
) -> None:
    _folder(tmp_path, "stored")
    (tmp_path / "run.yaml").write_text("env: own_envs_stored:Line\n")
    done = _metta(zygote, tmp_path, "train", "run.yaml", *_SMALL)
    assert done.code == 2
    said = done.err.replace("\n", " ")
    assert "the current folder has it, but is not on Python's path" in said


def test_a_function_of_any_module_is_not_an_environment() -> None:
    with pytest.raises(EnvError, match="not a subclass"):
        check_env_id("os:system")
