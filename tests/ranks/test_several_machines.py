"""Two torchruns that meet at an address of this machine which others reach, as those of two machines do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.ranks.test_ranks_together import snapshots, train_words, trained

pytestmark = pytest.mark.timeout(240)
STEPS = 256


def own_address() -> str:
    for found in psutil.net_if_addrs().values():
        for one in found:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no address but loopback")


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def machines(folder: Path, *more: str) -> list[tuple[int, str]]:
    """Exit codes and standard errors of two torchruns with a rank each."""
    address = own_address()
    place = f"{address}:{free_port(address)}"
    words = train_words(folder, "two", f"total_timesteps={STEPS}", *more)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
               "--rdzv-backend", "c10d", "--rdzv-id", "one", "--rdzv-endpoint", place, "--local-addr",
               address, "--rdzv-conf"]  # fmt: skip
    started = [
        subprocess.Popen(
            [*command, f"is_host={number == 0}", "-m", "--", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        said = [one.communicate(timeout=120)[1] for one in started]
    finally:
        for one in started:
            one.kill()
    return [(one.returncode, text) for one, text in zip(started, said, strict=True)]


def test_ranks_of_two_machines_give_the_bits_of_one_process(tmp_path: Path) -> None:
    for code, said in machines(tmp_path, "trusted_network=true"):
        assert code == 0, said
    assert snapshots(tmp_path / "two")[-1] == trained(1, tmp_path, "whole", STEPS)


def test_ranks_of_two_machines_are_refused_until_their_network_is_trusted(tmp_path: Path) -> None:
    for code, said in machines(tmp_path):
        assert code != 0
        assert "without a password" in said
        assert "system.trusted_network=true" in said
    assert not list((tmp_path / "two").glob("*"))
