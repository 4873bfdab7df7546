"""Names are names, and what is found stays where it was looked for."""

from pathlib import Path

import pytest

from metta.errors import ConfigError, PolicyError, UnsafeFileError
from metta.untrusted.paths import check_name, path_of, safe_join


@pytest.mark.parametrize("name", ["a", "0", "cart.pole-1_x", "A" * 128, "con", "a..b"])
def test_a_name_passes_when_it_is_one(name: str) -> None:
    assert check_name(name, "--run") == name


BAD_NAMES = ["", ".", "..", "../a", "a/b", "/a", "-a", ".a", "_a", "a b", "a\n", "a\0", "ä", "A" * 129,
             "a\\b", "a%2eb", "~", "a:b", "a*"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_config_error_shows_the_name_when_it_is_none(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--run '.*' is not a name .*letter or digit") as caught:
        check_name(name, "--run")
    assert len(str(caught.value)) < 400


def test_a_place_is_found_when_it_lies_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "real" / "inside").symlink_to("file")
    root = tmp_path / "root"  # whoever names a link knows where it leads
    assert safe_join(root, "a", "b.txt") == root / "a" / "b.txt"
    assert safe_join(root, "inside") == root / "inside"
    assert safe_join(root) == root


@pytest.mark.parametrize(
    "part", ["../x", "a/../../x", "..", "/etc/passwd", "a\0", "\ud800", "out", "loop"]
)
def test_an_unsafe_file_error_is_raised_when_a_place_lies_elsewhere(
    tmp_path: Path, part: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    with pytest.raises(UnsafeFileError):
        safe_join(root, part)
    with pytest.raises(UnsafeFileError):
        safe_join(root, "out", "file")


def test_a_uri_is_the_path_it_was_made_of_when_it_has_strange_characters(tmp_path: Path) -> None:
    for name in ("plain", "a b", "ü%41", "a?b#c", "x\\y", "..."):
        path = tmp_path / name
        assert path_of(path.as_uri()) == path
        assert path_of(str(path)) == path
    assert path_of("file://localhost/tmp/x") == Path("/tmp/x")
    assert path_of("runs/x") == Path("runs/x").absolute()


@pytest.mark.parametrize(
    "uri",
    [
        "file://evil.example/share/x", "file://evil.example:80/x", "file://user@localhost/x",
        "file:///a/%2e%2e/b", "file:///a/../b", "file:///a%2Fb", "file:///a%00b", "file:///a?x=1", "file:///a#b",
        "a\0b", "file:///a\0b", "\ud800", "file:///\ud800", "file://[::1/x",
    ],
)  # fmt: skip
def test_a_policy_error_is_raised_when_a_uri_hides_something(uri: str) -> None:
    with pytest.raises(PolicyError):
        path_of(uri)
