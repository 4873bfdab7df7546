"""Other libraries that metta is measured beside, and what each needs."""

import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

from metta.errors import ConfigError

__all__ = ["PEERS", "Peer", "missing_modules", "peer_script"]

_SCRIPTS = Path(__file__).parent / "peers"
_PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Peer:
    """A library, and the script that trains with it."""

    script: str
    """In the folder ``peers``; imports nothing of metta, so that any interpreter can run it."""
    modules: tuple[str, ...]
    """What its interpreter must find."""
    install: str
    """Arguments of ``pip install``."""


PEERS: dict[str, Peer] = {
    "sb3": Peer("train_sb3.py", ("stable_baselines3",), "stable-baselines3"),
    "cleanrl": Peer(
        "", ("torch", "gymnasium", "tyro", "tensorboard"), "torch gymnasium tyro tensorboard"
    ),
    "skrl": Peer("train_skrl.py", ("skrl", "torch", "gymnasium"), "skrl torch"),
    "tianshou": Peer("train_tianshou.py", ("tianshou",), "tianshou"),
    "torchrl": Peer("train_torchrl.py", ("torchrl", "gymnasium"), "torchrl gymnasium"),
    "sbx": Peer("train_sbx.py", ("sbx",), "sbx-rl"),
    "rllib": Peer(
        "train_rllib.py",
        ("ray", "tensorboardX", "tree", "torch", "gymnasium"),
        "'ray[rllib]' torch",
    ),
    "sample-factory": Peer("train_sample_factory.py", ("sample_factory",), "sample-factory"),
    "jax": Peer("train_jax.py", ("jax",), "jax"),
    "plain": Peer("train_plain.py", ("torch", "gymnasium"), "torch gymnasium"),
    "gymnasium": Peer("step_gymnasium.py", ("gymnasium",), "gymnasium"),
}
"""Peers by name. CleanRL's scripts are its own, in a folder that the user names."""


def peer_script(peer: str) -> Path:
    """The file that trains with a peer."""
    return _SCRIPTS / PEERS[peer].script


@functools.cache
def missing_modules(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `modules` that an interpreter does not find; nothing is imported."""
    code = (
        "import sys\n"
        "sys.path[:] = filter(None, sys.path)\n"  # not the current folder
        "import importlib.util\n"
        "print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"
    )
    try:
        found = subprocess.run(
            [python, "-c", code, *modules],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{python!r} is no Python that can be started: {error}") from error
    return tuple(found.stdout.split())
