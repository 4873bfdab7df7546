"""Addresses of databases: what they mean, and that no password is ever shown."""

import subprocess
import sys
from pathlib import Path

import pytest
from event_logs import write_run

from benchmarks.postgres_server import PostgresServer
from metta.cli.main import main
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


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "given",
    [
        f"host=db.example dbname=metta user=bot password={SECRET}",
        f"password={SECRET}.db",
        f"dbname=metta sslpassword = {SECRET}",
        f"Server=db.example;Database=metta;Pwd={SECRET};",
        f"bot:{SECRET}@host/metta.db",
        f"postgresql:/bot:{SECRET}@host/metta.db",
        f"sqlite:{SECRET}.db",
        f"postgresql:{SECRET}",
        f"bot/{SECRET}@host:1521/metta",
        SECRET,
        f"jdbc:postgresql://host/metta?password={SECRET}",
        f"postgresql//bot:{SECRET}@host/metta",
        f"mysql://bot:{SECRET}@host/metta",
        f"postgresql://bot:p@{SECRET}@host/metta",
        f"a b://bot:{SECRET}@host",
    ],
)
def test_stats_refuses_an_address_that_is_neither_a_path_nor_a_url(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["stats", "ingest"]
    codes = [main([*words, "--database", given])]
    monkeypatch.setenv("METTA_STATS_URL", given)
    codes.append(main(words))
    said = capsys.readouterr()
    assert codes == [2, 2], said.err
    assert said.err.count("metta: ConfigError: ") == 2
    assert SECRET not in said.out + said.err
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


def test_a_path_with_an_equals_sign_is_a_file_when_it_begins_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "lr=0.1").mkdir()
    for given in (f"{tmp_path}/lr=0.1/stats.db", "./lr=0.1/stats.db", "/data/a=1 b=2/stats.db"):
        assert database_url(given).get_backend_name() == "sqlite"
    command = [sys.executable, "-m", "metta.cli.main", "stats", "ingest", "--output", "lr=0.1"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "lr=0.1" / "stats.db").exists()
    (tmp_path / "old").touch()
    assert database_url(str(tmp_path / "old")).database == str(tmp_path / "old")


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
