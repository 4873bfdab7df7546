"""Policies of Weights & Biases. A stand-in plays the service, which no test may reach."""

import builtins
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import metta
from metta.agent.factory import make_policy
from metta.envs.toy import CorridorEnv
from metta.errors import MissingExtraError, PolicyError
from metta.store import wandb_artifacts
from metta.store.policies.file import save_policy
from metta.store.policy_store import PolicyStore, spaces_of
from metta.store.wandb_artifacts import download_policy, open_api
from metta.train.train_config import AgentConfig

URI = "wandb://me/project/policy-1a2b:epoch_000004"
POLICY = make_policy(*spaces_of(CorridorEnv), AgentConfig(hidden_size=4), seed=3)


class Service:
    """Artifacts as `wandb.Api` gives them: one of version v3, with these files."""

    def __init__(self, files: dict[str, bytes], **about: Any) -> None:
        self.files, self.about = files, about
        self.asked: list[str] = []
        self.downloads = 0
        self.error: Exception | None = None

    def artifact(self, name: str) -> Any:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        entries = {file: self.entry(file) for file in self.files}
        return SimpleNamespace(
            version=self.about.get("version", "v3"),
            manifest=SimpleNamespace(entries=entries),
            get_entry=entries.__getitem__,
        )

    def entry(self, file: str) -> Any:
        size = self.about.get("size", len(self.files[file]))

        def download(root: str) -> str:
            self.downloads += 1
            target = Path(root) / file
            if self.about.get("link"):
                target.symlink_to(self.about["link"])
            else:
                target.write_bytes(self.files[file])
            return str(target)

        return SimpleNamespace(size=size, ref=self.about.get("ref"), download=download)


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    metadata = {"epoch": 4, "agent_step": 64, "score": 2.0}
    return save_policy(tmp_path / "made" / "p.safetensors", POLICY, metadata).read_bytes()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_policy_acts_when_it_is_named_by_its_artifact(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service({"policy.safetensors": content, "notes.txt": b"hello"})
    monkeypatch.setattr(wandb_artifacts, "open_api", lambda: service)
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path / "cache"))
    record = PolicyStore(tmp_path).load(URI)
    assert record.policy is not None
    assert record.policy.parameter_hash() == POLICY.parameter_hash()
    assert (record.epoch, record.metadata["score"]) == (4, 2.0)
    assert metta.load_policy(URI).policy.parameter_hash() == POLICY.parameter_hash()
    assert set(service.asked) == {"me/project/policy-1a2b:epoch_000004"}
    assert service.downloads == 1
    place = "wandb/me/project/policy-1a2b/v3/policy.safetensors"
    assert files_below(tmp_path / "cache") == [place]
    with pytest.raises(PolicyError, match="not the pinned file"):
        PolicyStore(tmp_path).find(URI, sha256="0" * 64)


def test_the_service_is_not_asked_when_a_version_is_in_the_cache(
    tmp_path: Path, content: bytes
) -> None:
    service = Service({"mine.safetensors": content})
    first = download_policy("wandb://project/policy:latest", cache=tmp_path / "c", api=service)
    service.error = OSError("no network")
    assert download_policy("wandb://project/policy:v3", cache=tmp_path / "c", api=service) == first
    assert service.asked == ["project/policy:latest"]
    assert first.read_bytes() == content
    with pytest.raises(PolicyError, match="no network"):
        download_policy("wandb://project/policy:latest", cache=tmp_path / "c", api=service)


HOSTILE: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "escapes": ({"../../evil.safetensors": b"x"}, {}, "is not a plain name"),
    "absolute": ({"/tmp/evil.safetensors": b"x"}, {}, "is not a plain name"),
    "hidden": ({".evil.safetensors": b"x"}, {}, "is not a plain name"),
    "announced as large": ({"policy.safetensors": b"x"}, {"size": 2**40}, "has a file of 1099511"),
    "larger than announced": ({"policy.safetensors": b"x" * 300}, {"size": 1}, "300 bytes; up to"),
    "a reference": ({"policy.safetensors": b"x"}, {"ref": "file:///etc/passwd"}, "only refers to"),
    "a link": ({"policy.safetensors": b"x"}, {"link": "/etc/hostname"}, "symbolic link"),
    "a pickle": ({"policy.safetensors": pickle.dumps([1])}, {}, "is a pickle of protocol"),
    "only a pickle": ({"model.pt": b"x"}, {}, "it needs 'policy.safetensors'"),
    "two files": ({"a.safetensors": b"x", "b.safetensors": b"x"}, {}, "or one other"),
    "torn": ({"policy.safetensors": b"torn"}, {}, "torn|damaged|safetensors"),
    "no version": ({"policy.safetensors": b"x"}, {"version": "../v3"}, "without a version"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_kept_when_an_artifact_is_hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(wandb_artifacts, "MAX_BYTES", 200)
    files, about, message = HOSTILE[name]
    with pytest.raises(PolicyError, match=message):
        download_policy(URI, cache=tmp_path / "deep" / "cache", api=Service(files, **about))
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    "uri",
    [
        "wandb://",
        "wandb://policy:v3",
        "wandb://a/b/c/d:v3",
        "wandb://me/project/policy",
        "wandb://me/../policy:v3",
        "wandb://me/project/policy:../v3",
        "wandb://me//policy:v3",
        "wandb://.me/project/policy:v3",
    ],
)
def test_a_policy_error_shows_how_it_is_written_when_an_address_is_none(
    tmp_path: Path, uri: str
) -> None:
    with pytest.raises(PolicyError, match="write wandb://entity/project/artifact:version"):
        download_policy(uri, cache=tmp_path, api=Service({}))


@pytest.mark.parametrize("error", [OSError("unreachable"), ValueError("no such artifact")])
def test_a_policy_error_says_what_to_do_when_the_service_fails(
    tmp_path: Path, error: Exception
) -> None:
    service = Service({})
    service.error = error
    with pytest.raises(
        PolicyError, match=rf"{error}; check the network .* `wandb login` .* its path"
    ):
        download_policy(URI, cache=tmp_path, api=service)


def test_a_bug_is_shown_as_it_is_when_the_service_is_not_to_blame(tmp_path: Path) -> None:
    service = Service({})
    service.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        download_policy(URI, cache=tmp_path, api=service)


def test_a_policy_error_says_what_to_do_when_nobody_is_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real library, with no key anywhere: it must neither ask nor reach for the network."""
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(builtins, "input", None)
    with pytest.raises(PolicyError, match="run `wandb login`"):
        download_policy(URI, cache=tmp_path)


def test_the_extra_is_named_when_the_library_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[wandb\]"):
        open_api()
    with pytest.raises(MissingExtraError):
        download_policy(URI, cache=tmp_path)


def test_a_policy_error_names_the_folder_when_the_cache_cannot_be_written(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_text("in the way")
    service = Service({"policy.safetensors": content})
    with pytest.raises(PolicyError, match="METTA_CACHE_DIR names another folder"):
        download_policy(URI, cache=tmp_path / "file", api=service)
