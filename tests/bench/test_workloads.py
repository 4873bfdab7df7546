"""Workloads name only what exists, and their settings are settings of metta."""

import ast
import sys
from pathlib import Path

import pytest

from benchmarks import speed
from benchmarks.speed.job_commands import Selection, check_names, find_workload, jobs_of, with_rows
from benchmarks.speed.peer_catalogue import PEERS, missing_modules, peer_script
from benchmarks.speed.workloads import NATIVE_CARTPOLE, WORKLOADS
from metta.envs.env_ids import check_env_id
from metta.errors import ConfigError
from metta.train.layers import resolve

SCRIPTS = {
    "benchmarks.speed.peers.job_settings": (),
    "benchmarks.speed.peers.step_gymnasium": ("gymnasium",),
    "benchmarks.speed.peers.train_jax": ("jax",),
    "benchmarks.speed.peers.train_plain": ("plain",),
    "benchmarks.speed.peers.train_rllib": ("rllib",),
    "benchmarks.speed.peers.train_sample_factory": ("sample-factory",),
    "benchmarks.speed.peers.train_sb3": ("sb3",),
    "benchmarks.speed.peers.train_sbx": ("sbx",),
    "benchmarks.speed.peers.train_skrl": ("skrl",),
    "benchmarks.speed.peers.train_tianshou": ("tianshou",),
    "benchmarks.speed.peers.train_torchrl": ("torchrl",),
}
"""Every file in the folder of peers, and whose it is."""
HOME = Path(speed.__file__).parent
FOLDER = HOME / "peers"
ROWS = [(name, entry) for name, workload in WORKLOADS.items() for entry in workload.entries]


def imports_of(script: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_every_script_belongs_to_a_peer_when_it_is_in_the_folder() -> None:
    assert {f"benchmarks.speed.peers.{path.stem}" for path in FOLDER.glob("*.py")} == SCRIPTS.keys()
    owners = {peer for peers in SCRIPTS.values() for peer in peers}
    assert owners == PEERS.keys() - {"cleanrl"}
    for name, peers in SCRIPTS.items():
        for peer in peers:
            assert peer_script(peer) == FOLDER / f"{name.rpartition('.')[2]}.py"


def test_scripts_of_peers_need_neither_metta_nor_each_other() -> None:
    scripts = sorted(FOLDER.glob("*.py"))
    assert [path.stem for path in scripts if {"metta", "benchmarks"} & imports_of(path)] == []
    # a script named like a library would be imported in its place
    libraries = {module for peer in PEERS.values() for module in peer.modules}
    assert {path.stem for path in scripts} & libraries == set()
    assert [path.stem for path in scripts if (FOLDER / path.stem).exists()] == []


def test_workloads_name_only_what_exists() -> None:
    for workload in WORKLOADS.values():
        names = [entry.name for entry in workload.entries]
        assert len(set(names)) == len(names)
        assert workload.baseline is None or workload.baseline in names
        for entry in workload.entries:
            assert entry.steps > 0
            assert entry.peer is None or entry.peer in PEERS
            assert entry.peer is not None or (HOME / "jobs" / f"{entry.program}.py").is_file()


def test_settings_of_our_own_rows_are_settings_of_metta() -> None:
    own = [(WORKLOADS[name].settings, entry.settings) for name, entry in ROWS if entry.peer is None]
    assert len(own) > 10
    for shared, settings in own:
        resolve(None, [], {**shared, **settings}, check_sizes=False)


def jobs_and_lines(name: str, **selection) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    jobs, left_out = jobs_of(find_workload(name), Selection(**selection))
    return {job.name: job.command for job in jobs}, left_out


def test_a_line_says_how_to_install_when_a_peer_cannot_be_imported() -> None:
    jobs, left_out = jobs_and_lines("w1", peers=["tianshou", "sb3-1thread"])
    assert jobs.keys() == {"metta", "metta-eager", "sb3-1thread"}
    (line,) = left_out
    assert line == (
        f"tianshou is left out: {sys.executable} does not find tianshou; install: {sys.executable} -m "
        "pip install tianshou, or name another Python: --python tianshou=PATH"
    )


def test_metta_itself_is_left_out_when_it_needs_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.speed.job_commands.missing_modules", lambda _, modules: modules)
    jobs, left_out = jobs_and_lines("w3", peers=[])
    assert jobs == {}
    assert "-m pip install ale-py, or name another Python: --python metta=PATH" in left_out[0]


def test_only_metta_runs_when_no_peer_is_wanted() -> None:
    jobs, left_out = jobs_and_lines("w1", peers=[])
    assert jobs.keys() == {"metta", "metta-eager"}
    assert left_out == []
    assert jobs["metta"][:3] == (sys.executable, "-m", "benchmarks.speed.jobs.train")


def test_one_row_runs_when_only_it_is_wanted() -> None:
    jobs, left_out = jobs_and_lines("w1", only=["metta-eager"])
    assert (list(jobs), left_out) == (["metta-eager"], [])


def test_the_world_in_c_exists_when_workloads_name_it() -> None:
    check_env_id(NATIVE_CARTPOLE)


def test_a_peer_runs_under_its_own_interpreter_when_one_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    jobs, _ = jobs_and_lines("w1", peers=["plain"], pythons={"plain": str(python)}, steps=5)
    assert jobs["plain"][:2] == (str(python), str(FOLDER / "train_plain.py"))
    assert '"steps": 5' in jobs["plain"][2]


def test_the_error_names_the_interpreter_when_it_cannot_be_started() -> None:
    with pytest.raises(ConfigError, match="'no-such-python' is no Python that can be started"):
        jobs_and_lines("w1", peers=["sb3"], pythons={"sb3": "no-such-python"})


def test_cleanrl_runs_its_own_script_when_its_folder_is_given(tmp_path: Path) -> None:
    _, (line, _) = jobs_and_lines("w1", peers=["cleanrl"])
    assert line.startswith("cleanrl is left out: give --cleanrl DIR")
    _, (line, _) = jobs_and_lines("w1", peers=["cleanrl"], cleanrl=tmp_path)
    assert "there is no ppo.py in" in line
    (tmp_path / "ppo.py").touch()
    workload = find_workload("w1")
    needed = missing_modules(sys.executable, PEERS["cleanrl"].modules)
    jobs, left_out = jobs_of(workload, Selection(peers=["cleanrl"], cleanrl=tmp_path))
    if needed:
        assert f"does not find {', '.join(needed)}" in left_out[0]
    else:
        assert jobs[-1].command[1] == str(tmp_path / "ppo.py")


def test_cleanrl_hears_the_settings_when_it_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.speed.job_commands.missing_modules", lambda *_: ())
    (tmp_path / "ppo.py").touch()
    jobs, _ = jobs_of(find_workload("w1"), Selection(peers=["cleanrl-1thread"], cleanrl=tmp_path))
    job = jobs[-1]
    assert (job.step_line, job.steps_per_line) == ("SPS:", 1024)
    assert job.command[2:4] == ("--num-envs", "8")
    assert job.environment["OMP_NUM_THREADS"] == "1"


def test_a_hint_is_given_when_a_name_is_misspelt() -> None:
    with pytest.raises(ConfigError, match="no workload 'w1-vektor'; did you mean 'w1-vector'"):
        find_workload("w1-vektor")
    w1 = [find_workload("w1")]
    with pytest.raises(ConfigError, match="has the peer 'skrll'; did you mean 'skrl'"):
        check_names(w1, Selection(peers=["skrll"]))
    with pytest.raises(ConfigError, match="no peer 'tianshu'; did you mean 'tianshou'"):
        check_names(w1, Selection(pythons={"tianshu": "python"}))
    check_names(w1, Selection(peers=["sb3", "sb3-1thread"], pythons={"metta": "python"}))


def test_metta_has_one_more_row_when_settings_are_given() -> None:
    workload = with_rows(find_workload("w1"), {"metta-numpy": ["numerics.actor=numpy"]})
    added = workload.entries[-1]
    assert (added.name, dict(added.settings)) == ("metta-numpy", {"numerics.actor": "numpy"})
    assert added.details == WORKLOADS["w1"].entries[0].details
    assert with_rows(find_workload("w4"), {"x": ["lr=1"]}) == WORKLOADS["w4"]
