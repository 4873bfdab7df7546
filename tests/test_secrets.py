import json
import re
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from metta import secrets
from metta.errors import ConfigError
from metta.secret_names import looks_secret
from metta.secrets import exposure, resolve, resolve_all, scrub, scrub_all
from metta.train.settings import setting_paths

SECRET_NAMES = [
    "token", "api_token", "apiKey", "API_KEY", "apikey", "dbPassword", "HF_TOKEN", "client_secret",
    "AWS_SECRET_ACCESS_KEY", "private_key", "credentials", "auth", "accessToken", "access_tokens",
    "PGPASSWORD", "sslpassword", "DB_PASS", "GITHUB_PAT", "STRIPE_KEY", "KAGGLE_KEY", "SSHPASS", "pass",
    "SECRET_KEY_BASE", "MONGO_PASS", "client.smtp_pass", "authtoken", "Set-Cookie", "LDAP_BIND_PW",
    "Authorization", "SECRET_V2", "DB_PASSWORD_PROD", "password2", "server.login.passwd", "x-api-key",
]  # fmt: skip
INNOCENT_NAMES = [
    "num_tokens", "numTokens", "token_dim", "max_token_length", "tokenizer", "secretary", "author",
    "authority", "auth_mode", "password_hash", "key", "keyboard", "monkey", "api", "tokens", "", "env",
    "update_passes", "bypass", "compass", "forward_pass", "obs_key", "sort_key", "public_key",
    "PUBLIC_KEY",
    "PRIMARY_KEY", "MAX_TOKENS", "hotkey", "pin_memory", "path", "passes", "OLDPWD",
]  # fmt: skip
"""The word is part of another one, or describes one."""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that other tests resolved stay known for as long as the process lives."""
    monkeypatch.setattr(secrets, "_resolved", {})


def test_a_name_looks_secret_when_it_ends_in_a_secret_word() -> None:
    assert [name for name in SECRET_NAMES if not looks_secret(name)] == []
    assert [name for name in INNOCENT_NAMES if looks_secret(name)] == []


def test_a_key_of_any_kind_is_secret_when_its_value_looks_random() -> None:
    assert looks_secret("stripe_key", "4f9a8b7c6d5e4f3a2b1c0d9e")
    assert not looks_secret("dataset_key", "d4rl/hopper-medium-replay-v2")
    assert not looks_secret("obs_key", "pixels")
    assert not looks_secret("public_key", "4f9a8b7c6d5e4f3a2b1c0d9e")


def test_no_setting_and_no_metric_of_metta_looks_secret() -> None:
    metrics = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    names = {*setting_paths(), *re.findall(r"`([^`\s]+)`", metrics)}
    assert len(names) > 200
    value = "4f9a8b7c6d5e4f3a2b1c0d9e"
    assert [name for name in sorted(names) if looks_secret(name, value)] == []
    assert [name for name in names if scrub(f"{name}={value}") != f"{name}={value}"] == []


def test_a_reference_becomes_the_value_when_its_variable_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLAIN_NAME", "hunter-2")
    assert resolve("env:PLAIN_NAME") == "hunter-2"
    settings = {"a": ["env:PLAIN_NAME", {"b": ("env:PLAIN_NAME", 3)}], "c": "env:", "d": 1.5}
    assert resolve_all(settings) == {
        "a": ["hunter-2", {"b": ("hunter-2", 3)}],
        "c": "env:",
        "d": 1.5,
    }
    assert settings["a"][0] == "env:PLAIN_NAME"


@pytest.mark.parametrize(
    "value", ["environment", "env:", "env:a b", "xenv:A", 3, None, b"env:HOME"]
)
def test_a_value_stays_when_it_is_no_reference(value: object) -> None:
    assert resolve(value) is value


def test_the_variable_is_named_when_it_is_not_set_or_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    monkeypatch.setenv("NOTHING", "")
    with pytest.raises(ConfigError, match="NOT_THERE is not set; set it where metta is started"):
        resolve("env:NOT_THERE")
    with pytest.raises(ConfigError, match="NOTHING is empty"):
        resolve_all({"a": ["env:NOTHING"]})


SHAPES = [
    "0f1e2d3c",
    "a\"b'c\\d",
    "p@ss:/w?x&y",
    "pässwörd ☃",
    "two words",
    "tab\tand\nline",
    "\udcff\udcfeabcd",
]


@pytest.mark.parametrize("secret", SHAPES)
@pytest.mark.parametrize("variable", ["SOME_TOKEN", "REFERRED_TO"])
def test_a_known_secret_is_hidden_when_it_is_in_any_text(
    monkeypatch: pytest.MonkeyPatch, secret: str, variable: str
) -> None:
    monkeypatch.setenv(variable, secret)
    if variable == "REFERRED_TO":
        resolve("env:REFERRED_TO")
    encoded = secret.encode(errors="surrogateescape")
    for form in [secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(repr(secret))[2:-2],
                 quote(encoded), quote(encoded, safe=""), quote_plus(encoded)]:  # fmt: skip
        assert scrub(f"before {form} after") == "before *** after"


def test_every_line_is_hidden_when_a_secret_has_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE_KEY", "-----BEGIN-----\nabcdef012345\n-----END-----")
    assert scrub("> abcdef012345 <") == "> *** <"


def test_the_longer_secret_is_hidden_whole_when_one_contains_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdef")
    monkeypatch.setenv("B_TOKEN", "abcdef-ghijkl")
    assert scrub("abcdef-ghijkl abcdef") == "*** ***"


@pytest.mark.parametrize("value", ["short", "xxxxxxxx", "default", "Localhost"])
def test_a_text_stays_when_a_variable_holds_nothing_worth_hiding(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOME_TOKEN", value)
    assert scrub(f"it says {value}") == f"it says {value}"


def test_a_path_stays_when_a_variable_names_a_file_that_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOME_AUTH", str(tmp_path))
    assert scrub(f"in {tmp_path}") == f"in {tmp_path}"


def test_a_variable_is_innocent_when_its_name_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_AUTHOR", "margaret hamilton")
    assert scrub("by margaret hamilton") == "by margaret hamilton"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("postgres://bot:pw@host/db", "postgres://***@host/db"),
        ("https://ghp_123@host", "https://***@host"),
        ("redis://:p@ss@host", "redis://***@host"),
        ("GET /a?token=abc&b=1", "GET /a?token=***&b=1"),
        ("/a?key=AIza&sig=x#y", "/a?key=***&sig=***#y"),
        ("connect(password='my, pass')", "connect(password='***')"),
        ("{'api_key': 'abc', 'b': 'c'}", "{'api_key': '***', 'b': 'c'}"),
        (
            '{"reason":"{\\"api_key\\": \\"a b\\"}, x"}',
            '{"reason":"{\\"api_key\\": \\"***\\"}, x"}',
        ),
        ("lost: password=abc, again", "lost: password=***, again"),
        ("password: abc", "password: ***"),
        ("run '--password=two words' b", "run '--password=***' b"),
        ("run --api-key abc --seed 3", "run --api-key *** --seed 3"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("sent Bearer abcdefgh.ij", "sent Bearer ***"),
        ("password='never closed", "password='***"),
        ("host=h sslpassword=abc dbname=d", "host=h sslpassword=*** dbname=d"),
        ("UID=sa;PWD=abc;", "UID=sa;PWD=***;"),
        ("Cookie: a=b; c=defgh", "Cookie: ***"),
        ("a ghp_0123456789abcdefghijABCD b", "a *** b"),
        ("aws AKIA0123456789ABCDEF.", "aws ***."),
        ("x?X-Amz-Signature=abc&y=1", "x?X-Amz-Signature=***&y=1"),
    ],
)
def test_credentials_are_hidden_when_the_text_shows_what_they_are(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed
    assert scrub(scrubbed) == scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "", "epoch=3 loss: 0.5", "num_tokens=5", "unexpected token: }", "api_key=env:NAME",
        "{'password': 'env:NAME'}", "file:///folder/a@b", "http://host:80/a", "password=", "token_dim: 64",
        "'api_key' looks like a secret", "the author: somebody", "obs_key='pixels'", "pass: 3 of 5",
        "key=5",
        "ssh://git@host/a", "task-with-a-long-name-of-words", "eyJust", "forward_pass=0.25", "num_keys=3",
    ],
)  # fmt: skip
def test_a_text_stays_when_there_is_nothing_to_hide(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "text",
    ["token" * 40_000, "password='" * 20_000, "key " * 50_000, "'key=" + "x" * 200_000,
     "pwd:" + " " * 200_000, "authorization: " * 15_000, "x://" * 50_000 + "key",
     "a:" * 50_000 + "://secret"],
)  # fmt: skip
@pytest.mark.timeout(10)
def test_no_text_takes_long_when_it_is_long_and_hostile(text: str) -> None:
    scrub(text)


def test_nested_data_is_without_secrets_when_it_is_scrubbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret-value")
    data = {
        "s3cret-value": 1,
        "texts": ["with s3cret-value", ("s3cret-value",), 12],
        "credentials": {
            "user": "bot",
            "pins": ["1234", 5],
            "from": "env:NAME",
            "none": None,
            "": "",
        },
        "argv": ["--password=two words", "--api-key", "abc", "--seed", "3", "--token", "env:NAME"],
        3: True,
    }
    assert scrub_all(data) == {
        "***": 1,
        "texts": ["with ***", ("***",), 12],
        "credentials": {
            "user": "***",
            "pins": ["***", 5],
            "from": "env:NAME",
            "none": None,
            "": "",
        },
        "argv": ["--password=***", "--api-key", "***", "--seed", "3", "--token", "env:NAME"],
        3: True,
    }
    assert data["texts"][0] == "with s3cret-value"


def test_a_variable_is_seen_when_it_is_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scrub("late-value-1") == "late-value-1"
    monkeypatch.setenv("LATE_TOKEN", "late-value-1")
    assert scrub("late-value-1") == "***"
    monkeypatch.setenv("LATE_TOKEN", "late-value-2")
    assert scrub("late-value-2") == "***"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("api_key", "x", "looks like a secret by its name"),
        ("server", "https://bot:pw@host", "has credentials in it"),
        ("server", "https://token@host", "has credentials in it"),
        ("server", "https://host/?token=abc", "has credentials in it"),
        ("server", "it is s3cret-value", "holds the value of the environment variable SOME_TOKEN"),
        ("api_key", "env:NAME", None),
        ("api_key", "", None),
        ("server", "ssh://git@host", None),
        ("server", "https://host/a", None),
        ("num_tokens", "many", None),
    ],
)
def test_the_reason_is_given_when_a_setting_must_not_be_written(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, why: str | None
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret-value")
    assert exposure(name, text) == why
