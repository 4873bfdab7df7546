"""Two of the kills; ``python -m faults.run --only server_kills`` does all of them."""

from pathlib import Path

from faults.server_kills import ALWAYS, run_and_kill, verdict
from faults.trial import OK


def test_a_run_continues_when_its_fork_server_is_killed_while_it_starts(tmp_path: Path) -> None:
    ended, killed = run_and_kill(tmp_path, "run", kills=1, delay=0.0)
    assert verdict(ended, 1, killed) == OK
    assert ended.returncode == 0, ended.stdout


def test_the_error_says_so_when_every_fork_server_is_killed(tmp_path: Path) -> None:
    ended, killed = run_and_kill(tmp_path, "run", kills=ALWAYS, delay=0.0)
    assert verdict(ended, ALWAYS, killed) == OK
    assert ended.returncode == 1
    assert "EnvError: the guardian of workers could not be started: the fork server" in ended.stdout
