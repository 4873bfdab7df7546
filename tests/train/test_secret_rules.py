"""Secrets in settings: refused where they would be written, kept as references where they are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from metta.errors import ConfigError
from metta.train.layers import resolve
from metta.train.rules import secret_rules
from metta.train.run_config import CurriculumConfig, WandbConfig
from metta.train.train_config import TrainingConfig

ADVICE = "settings are written to files; give env:NAME, and set the environment variable NAME"


@pytest.mark.parametrize(
    ("kwargs", "place"),
    [
        ({"api_key": "hunter2"}, "api_key"),
        ({"client": {"dbPassword": "hunter2"}}, "client.dbPassword"),
        ({"servers": [{"url": "https://host/?token=hunter2"}]}, "servers.url"),
        ({"credentials": {"user": "hunter2"}}, "credentials"),
        ({"auth": ("hunter2", "x")}, "auth"),
        ({"token": b"hunter2"}, "token"),
    ],
)
def test_a_secret_is_refused_without_being_shown_when_it_stands_in_env_kwargs(
    kwargs: dict[str, Any], place: str
) -> None:
    for build in (
        lambda: CurriculumConfig(env_kwargs=kwargs),
        lambda: TrainingConfig.from_dict({"env_kwargs": kwargs}),
        lambda: resolve("cartpole", [], {"env_kwargs": kwargs}),
    ):
        with pytest.raises(ConfigError, match=ADVICE) as caught:
            build()
        assert repr(place) in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"wandb.entity": "https://bot:hunter2@host"},
        {"wandb.tags": ["fine", "x?token=hunter2"]},
        {"experiment_name": "password=hunter2"},
    ],
)
def test_credentials_are_refused_when_any_text_setting_has_them(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"has credentials in it, .* leave that part out"
    ) as caught:
        TrainingConfig.from_dict(settings)
    assert "hunter2" not in str(caught.value)


def test_the_value_of_a_variable_is_refused_when_it_was_pasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    with pytest.raises(ConfigError, match=r"entity: .* of the environment variable MY_TOKEN"):
        WandbConfig(entity="x hunter2-hunter2")


def test_file_and_line_are_named_when_a_file_holds_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 1\nenv_kwargs:\n  api_key: hunter2\n")
    with pytest.raises(ConfigError, match=r"env_kwargs \(.*mine.yaml:2\): 'api_key' looks like"):
        resolve(None, [file])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"api_key": "env:MY_KEY"},
        {"api_key": None, "password": "", "token": 3},
        {"num_tokens": "many", "author": "somebody", "url": "https://host/path"},
    ],
)
def test_settings_come_back_as_they_are_when_there_is_nothing_to_hide(
    tmp_path: Path, kwargs: dict[str, Any]
) -> None:
    config = TrainingConfig.from_dict({"env_kwargs": kwargs})
    assert secret_rules(config.trainer.curriculum) == []
    file = config.to_yaml(tmp_path / "config.yaml")
    assert TrainingConfig.from_yaml(file).trainer.curriculum.env_kwargs == kwargs
    found = resolve(None, [file]).provenance()["settings"]["trainer.curriculum.env_kwargs"]
    assert found["value"] == kwargs


def test_a_mapping_is_looked_at_without_end_when_it_holds_itself() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert CurriculumConfig(env_kwargs=endless).env_kwargs["again"] is not None


def test_provenance_is_without_secrets_when_what_was_overridden_had_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    file = tmp_path / "mine.yaml"
    file.write_text("env_kwargs: {api_key: swordfish, note: it is hunter2-hunter2, size: 3}\n")
    resolved = resolve(None, [file], {"env_kwargs": {"api_key": "env:MY_TOKEN"}})
    provenance = resolved.provenance()
    assert "hunter2" not in json.dumps(provenance)
    about = provenance["settings"]["trainer.curriculum.env_kwargs"]
    assert about["value"] == {"api_key": "env:MY_TOKEN"}
    assert about["overrides"][0]["value"] == {"api_key": "***", "note": "it is ***", "size": 3}
    explained = resolved.explain("env_kwargs")
    assert "overrides: {'api_key': '***', 'note': 'it is ***', 'size': 3}" in explained
    assert "env:MY_TOKEN" in explained
