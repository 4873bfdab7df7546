"""Addresses of Ray heads: how they are written, who reaches them, and the setting that errors name."""

import pytest

from metta.cluster.head_address import HeadAddress, is_loopback
from metta.cluster.ray_cluster import RayCluster
from metta.cluster.ray_join import token_mode
from metta.errors import ConfigError


def address(text: str) -> HeadAddress:
    return HeadAddress.parse(text, "--address")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("[::1]", True),
        ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("0.0.0.0", False), ("head", False),
    ],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_reaches(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
    assert address(f"{host}:6379").is_local is is_local


def test_names_of_one_host_are_the_same_head() -> None:
    assert address("localhost:6379").is_same(address("127.0.0.1:6379"))
    assert not address("localhost:6379").is_same(address("127.0.0.1:6380"))


def test_errors_name_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.address='head'; give host:port"):
        RayCluster("head", 1, setting="evaluation.address")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ConfigError, match=r"--address='10\.0\.0\.1:6379' is a cluster that others"):
        token_mode(address("10.0.0.1:6379"))
