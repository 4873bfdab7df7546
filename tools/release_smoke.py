"""Checks of an installed wheel: python release_smoke.py CHECKOUT WHEEL, run by `tools/release_check.sh`."""

import importlib
import sys
import tomllib
import zipfile
from pathlib import Path

import metta
from metta import PPOTrainer

KERNELS = ("metta.agent", "metta.ops", "metta.envs.grid", "metta.envs.cartpole")


def check_wheel(wheel: Path) -> None:
    """The wheel holds the library, its type marker and its licence, and no tests or tools."""
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    unexpected = {folder for folder in folders if folder != "metta" and ".dist-info" not in folder}
    assert not unexpected, f"{wheel.name} also holds {sorted(unexpected)}"
    assert "metta/py.typed" in names, f"{wheel.name} has no metta/py.typed"
    assert any(name.endswith("/LICENSE") for name in names), f"{wheel.name} has no LICENSE"


def check_installed(checkout: Path) -> None:
    """What is imported is the installed copy, of the version in pyproject.toml, with all C kernels."""
    place = Path(metta.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"metta was imported from {place}"
    assert not place.is_relative_to(checkout.resolve()), f"metta was imported from {place}"
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert metta.__version__ == project["version"], (metta.__version__, project["version"])
    for package in KERNELS:
        importlib.import_module(f"{package}._native")


def main() -> None:
    checkout, wheel = map(Path, sys.argv[1:])
    check_wheel(wheel)
    check_installed(checkout)
    with PPOTrainer(None, "metta/cartpole", n_steps=32, seed=1) as trainer:
        history = trainer.train(total_timesteps=512)
    print(f"installed: {len(KERNELS)} C kernels, {len(history['agent_step'])} epochs of PPOTrainer")


if __name__ == "__main__":
    main()
