"""Secrets under common names and in common shapes, through every door of `secret_doors`.

A trial is one name at one door: its secret must be in no byte that was written or shown there.
"""

import json
import os
import random
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults import secret_doors as doors
from faults.trial import OK, Trial
from faults.zygote import Zygote

VARIABLES = [
    "PGPASSWORD", "DB_PASS", "DB_PASSWORD", "DB_PWD", "MYSQL_PWD", "MYSQL_ROOT_PASSWORD",
    "POSTGRES_PASSWORD", "REDISCLI_AUTH", "REDIS_PASSWORD", "MONGO_PASS", "RABBITMQ_DEFAULT_PASS",
    "SMTP_PASS", "LDAP_BIND_PW", "SSHPASS", "SUDO_PASS", "GITHUB_PAT", "AZURE_DEVOPS_EXT_PAT",
    "GITHUB_TOKEN", "GITLAB_TOKEN", "NPM_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "NEPTUNE_API_TOKEN",
    "COMET_API_KEY", "KAGGLE_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_KEY", "AZURE_CLIENT_SECRET", "STRIPE_KEY", "SENDGRID_KEY", "DATADOG_KEY",
    "ENCRYPTION_KEY", "RAILS_MASTER_KEY", "SECRET_KEY_BASE", "DJANGO_SECRET_KEY", "JWT_SECRET",
    "SESSION_COOKIE", "VAULT_TOKEN", "SLACK_BOT_TOKEN", "TF_VAR_db_password", "RESTIC_PASSWORD",
    "BORG_PASSPHRASE", "SSH_PRIVATE_KEY", "DEPLOY_KEY", "LICENSE_KEY", "DOCKER_PASSWORD",
    "MLFLOW_TRACKING_PASSWORD", "TWINE_PASSWORD", "MODAL_TOKEN_SECRET", "CI_JOB_JWT", "BASIC_AUTH",
    "ADMIN_PASSCODE", "VPN_OTP", "SERVICE_CREDS",
]  # fmt: skip
SETTINGS = [
    "password", "passwd", "pass", "pwd", "pw", "db_pass", "api_key", "apiKey", "apikey", "secret_key",
    "client_secret", "clientSecret", "access_token", "accessToken", "refresh_token", "id_token",
    "private_key", "sshKey", "encryption_key", "auth", "credentials", "passphrase", "bearer_token",
    "signing_key", "account_key", "sas_token", "webhook_secret", "dbPassword", "userPassword",
    "stripe_key", "mapbox_key", "smtp_pass", "master_key", "sslpassword", "authtoken", "cookie", "jwt",
    "oauth",
]  # fmt: skip
PARAMETERS = [
    "token", "access_token", "api_key", "apikey", "key", "sig", "signature", "X-Amz-Signature",
    "X-Amz-Security-Token", "X-Goog-Signature", "sslpassword", "password", "auth", "client_secret",
    "subscription-key",
]  # fmt: skip
KEYWORDS = [
    "password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key", "pwd",
]  # fmt: skip
HEADERS = [
    "Authorization", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Vault-Token",
    "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "PRIVATE-TOKEN", "X-CSRF-Token", "Cookie",
    "Set-Cookie", "X-Amz-Security-Token", "X-Functions-Key", "Api-Key",
]  # fmt: skip
OPTIONS = [
    "password", "api-key", "db-pass", "token", "pgpassword", "secret", "access-token", "client-secret",
    "auth", "passphrase", "private-key", "pass", "credentials",
]  # fmt: skip
TOKENS = {
    "GitHub": "ghp_{}", "GitHub, fine-grained": "github_pat_11A_{}", "GitLab": "glpat-{}",
    "Slack": "xoxb-123-{}", "OpenAI": "sk-proj-{}", "old OpenAI": "sk-{}", "Anthropic": "sk-ant-api03-{}",
    "Stripe": "sk_live_{}", "Hugging Face": "hf_{}", "Google": "AIzaSyA{}zzzz",
    "SendGrid": "SG.abcdefghijklmnop.{}",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.{}", "npm": "npm_{}abcdefgh",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "bearer": "Bearer {}", "URL": "amqp://bot:{}@host/", "git": "https://{}@git.example/a.git",
}  # fmt: skip

DOORS: dict[str, tuple[doors.Door, Sequence[str]]] = {
    door.__name__: (door, names)
    for door, names in [
        (doors.variables_in_exceptions, VARIABLES),
        (doors.variables_pasted_into_settings, VARIABLES),
        (doors.variables_in_a_run_that_ends_well, VARIABLES),
        (doors.urls_in_variables, doors.URL_VARIABLES),
        (doors.assignments_in_exceptions, [*VARIABLES, *SETTINGS, *KEYWORDS]),
        (doors.options_in_exceptions, OPTIONS),
        (doors.headers_in_exceptions, HEADERS),
        (doors.queries_in_exceptions, PARAMETERS),
        (doors.shapes_in_exceptions, list(TOKENS)),
        (doors.settings_on_the_command_line, SETTINGS),
        (doors.queries_in_settings, PARAMETERS),
        (doors.shapes_in_settings, list(TOKENS)),
        (doors.settings_that_are_overridden, SETTINGS),
        (doors.options_that_there_are_not, OPTIONS),
        (doors.metadata_of_checkpoints, [*SETTINGS, *VARIABLES]),
        (doors.configs_of_wandb, [*SETTINGS, *VARIABLES]),
        (doors.command_lines_that_wandb_sees, OPTIONS),
        (doors.attributes_in_the_database, [*SETTINGS, *VARIABLES]),
        (doors.connection_parameters, KEYWORDS),
        (doors.urls_of_databases, [*KEYWORDS, "key"]),
    ]
}
ALL_NAMES = {
    *VARIABLES,
    *doors.URL_VARIABLES,
    *SETTINGS,
    *PARAMETERS,
    *KEYWORDS,
    *HEADERS,
    *OPTIONS,
}
_BY_VALUE = {"stripe_key", "mapbox_key", "X-Functions-Key"}
"""Names that are secret where the value looks random."""
_WINDOW = 12
_PLAY_SECONDS = 300.0
_PRELOADED = ["faults.secret_doors", "torch._dynamo", "matplotlib.pyplot", "wandb", "sqlalchemy"]


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Every name at every door that takes it; `count` does not matter."""
    del count
    yield from play_all(list(DOORS), seed, folder)


def play_all(chosen: Sequence[str], seed: int, folder: Path) -> Iterator[Trial]:
    random_numbers = random.Random(seed)
    with Zygote(_PRELOADED, cwd=Path(__file__).parents[1]) as zygote:
        for door in chosen:
            names = list(dict.fromkeys(DOORS[door][1]))
            cores = {name: _core(name, random_numbers) for name in names}
            secrets = {name: TOKENS.get(name, "{}").format(core) for name, core in cores.items()}
            place, ended = folder / door, folder / f"{door}.ended"
            place.mkdir()
            child = zygote.start(
                "faults.planted_names:play",
                door=door, secrets=json.dumps(secrets), folder=str(place), ended=str(ended),
            )  # fmt: skip
            code = child.wait(_PLAY_SECONDS)
            found, num_bytes = search(place, cores)
            for name in names:
                outcome = _verdict(code, ended, found[name], num_bytes)
                detail = {"bytes": num_bytes, "exit_code": code}
                yield Trial("planted_names", seed, f"{door}: {name}", outcome, detail=detail)


def play(door: str, secrets: str, folder: str, ended: str) -> None:
    """Open a door in this process; what it shows goes to ``console.txt``."""
    os.chdir(folder)
    os.environ["HOME"] = folder  # what is written beside the run would be found there
    console = os.open("console.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(console, 1)
    os.dup2(console, 2)
    DOORS[door][0](json.loads(secrets))
    Path(ended).touch()


def _core(name: str, random_numbers: random.Random) -> str:
    """24 characters: letters, which no rule for random values finds, unless the name needs one."""
    if name in _BY_VALUE:
        return f"{random_numbers.getrandbits(96):024x}"
    return "".join(random_numbers.choices(string.ascii_lowercase, k=24))


def _verdict(code: int, ended: Path, found: list[str], num_bytes: int) -> str:
    if found:
        return f"leaked to {', '.join(found)}"
    if code or not ended.exists():
        return f"the run ended with {code}"
    return OK if num_bytes else "nothing was written that could be searched"


def search(folder: Path, cores: dict[str, str]) -> tuple[dict[str, list[str]], int]:
    """For each name the files below a folder with a part of its core, and how many bytes there are."""
    found: dict[str, list[str]] = {name: [] for name in cores}
    parts = {
        name: [core[i : i + _WINDOW].encode() for i in range(len(core) - _WINDOW + 1)]
        for name, core in cores.items()
    }
    num_bytes = 0
    for path in sorted(folder.rglob("*")):
        content = os.fsencode(path.relative_to(folder)) + b"\0"
        if path.is_file():
            content += path.read_bytes()
            num_bytes += path.stat().st_size
        for name, core_parts in parts.items():
            if any(part in content for part in core_parts):
                found[name].append(str(path.relative_to(folder)))
    return found, num_bytes
