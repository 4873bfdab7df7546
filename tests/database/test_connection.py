"""Addresses of databases: what they mean, and that no password is ever shown."""

import subprocess
import sys
from pathlib import Path

import pytest
from event_logs import write_run

from benchmarks.postgres_server import PostgresServer
from metta.database import Ingester, StatsReader, database_url
from metta.database.connection import shown
from metta.errors import ConfigError, DatabaseUnavailableError, MissingExtraError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runs/a.sqlite", "sqlite:///runs/a.sqlite"),
        ("/data/a b.sqlite", "sqlite:////data/a b.sqlite"),
        ("sqlite:///a.sqlite", "sqlite:///a.sqlite"),
        ("postgresql://host/metta", "postgresql+psycopg://host/metta"),
        ("postgresql+psycopg2://host/metta", "postgresql+psycopg://host/metta"),
    ],
)
def test_an_address_is_understood_when_it_is_a_path_or_a_url(given: str, meant: str) -> None:
    assert database_url(given).render_as_string() == meant


@pytest.mark.parametrize("given", ["", "mysql://host/a", "http://host", "://", "sqlite://"])
def test_a_typed_error_tells_when_an_address_is_of_no_use(given: str) -> None:
    with pytest.raises(ConfigError):
        Ingester(given)


def test_references_are_resolved_when_an_address_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_WORD", "p@ss/w:rd-of-tests")
    url = database_url("postgresql://metta:env:DATABASE_WORD@host/metta")
    assert url.password == "p@ss/w:rd-of-tests"
    monkeypatch.setenv("WHOLE", "postgresql://metta:env:DATABASE_WORD@host/metta")
    assert database_url("env:WHOLE") == url
    with pytest.raises(ConfigError, match="ABSENT_VARIABLE is not set"):
        database_url("postgresql://metta:env:ABSENT_VARIABLE@host/metta")
    for text in (shown(url), repr(url)):
        assert "p@ss" not in text
        assert "p%40ss" not in text


def test_no_password_is_shown_when_it_is_wrong(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    address = postgres_server.url().replace(postgres_server.password, "some-wrong-word")
    log = tmp_path / "events.jsonl"
    write_run(log, 1)
    with Ingester(address) as ingester:
        with pytest.raises(DatabaseUnavailableError, match="authentication failed") as caught:
            ingester.ingest(log)
        assert "some-wrong-word" not in f"{caught.value} {ingester.url} {caught.value.__cause__}"
    with pytest.raises(DatabaseUnavailableError) as caught:
        StatsReader(address)
    assert "some-wrong-word" not in str(caught.value)


def test_the_extra_is_named_when_psycopg_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[postgres\]"):
        Ingester("postgresql://host/metta")


def test_the_extra_is_named_when_sqlalchemy_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from metta.errors import MissingExtraError\n"
        "try:\n    import metta.database\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "metta-rl[database]" in done.stdout


def test_neither_torch_nor_a_database_driver_is_loaded_when_the_other_side_is_imported() -> None:
    code = (
        "import sys, metta.database\nassert 'torch' not in sys.modules\n"
        "assert 'psycopg' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, metta.loggers\nassert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
