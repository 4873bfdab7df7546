"""What looks like a secret, by its name or by its shape.

The tables are the whole rule; ``docs/configuration.md`` has it for users.
"""

import functools
import re
from collections.abc import Iterator

__all__ = ["REFERENCE", "looks_secret", "secret_parts"]

REFERENCE = re.compile(r"env:([A-Za-z_]\w*)")
"""How a setting names the variable that holds a secret."""

# names: the last word decides, in snake_case, kebab-case or camelCase; digits and qualifiers do not count

_SECRET_WORDS = {
    "apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials",
    "creds", "jwt", "oauth", "otp", "pass", "passcode", "passphrase", "passwd", "password", "passwords",
    "pw", "pwd", "secret", "secrets", "sshpass", "token",
    "webhook",
}  # fmt: skip
"""Names that end in these are secret."""
_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "accountkey",
            "privatekey", "secretkey")  # fmt: skip
"""A last word may also end in these: ``PGPASSWORD``, ``sslpassword``, ``authtoken``."""
_UNSURE_WORDS = {"key", "keys", "pass", "pat", "pin", "tokens"}
"""Secret with a kind before them, in names in capitals, or if the value looks random."""
_KINDS = {
    "access", "account", "admin", "api", "auth", "client", "database", "db", "deploy", "encryption",
    "ftp", "license", "mail", "master", "private", "root", "secret", "server", "service", "shared",
    "signing", "smtp", "ssh", "storage", "subscription", "user",
}  # fmt: skip
_PLURALS = {"keys", "tokens"}
"""For these, capitals do not count: ``MAX_TOKENS``."""
_HARMLESS_KINDS = {"foreign", "primary", "public"}
_QUALIFIERS = {
    "b",
    "base",
    "dev",
    "header",
    "hex",
    "json",
    "live",
    "new",
    "old",
    "prod",
    "staging",
    "test",
    "v",
    "value",
}
_PROSE = {"auth", "authorization", "bearer", "pass", "secret", "token"}
"""Names after which a colon may begin a sentence: ``unexpected token: ...``."""

# shapes: texts that are secret wherever they are, after the part in group 1

_TOKENS = {
    "AIza": r"[\w-]{30,}", "AKIA": r"[A-Z0-9]{16}\b", "ASIA": r"[A-Z0-9]{16}\b",
    "SG.": r"[\w-]{16,}\.[\w-]+", "eyJ": r"[\w-]{10,}\.[\w-]{10,}\.[\w-]*", "gho_": r"\w{20,}",
    "ghp_": r"\w{20,}", "ghr_": r"\w{20,}", "ghs_": r"\w{20,}", "ghu_": r"\w{20,}",
    "github_pat_": r"\w{20,}", "glpat-": r"[\w-]{16,}",
    "hf_": r"[A-Za-z0-9]{20,}", "npm_": r"\w{30,}", "pypi-": r"[\w-]{40,}", "rk_live_": r"\w{16,}",
    "sk-": r"(?:(?:ant|or|proj|svcacct)-[\w-]{16,}|[A-Za-z0-9]{20,})", "sk_live_": r"\w{16,}",
    "sk_test_": r"\w{16,}", "xapp-": r"[\w-]{10,}", "xox": r"[abeoprs]-[\w-]{10,}", "ya29.": r"[\w-]{20,}",
}  # fmt: skip
"""How tokens begin, of GitHub, GitLab, Slack, AWS, Google, OpenAI, Stripe and others, and JWTs."""
_PRIVATE_KEY = r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[\s\S])++"
_URL_USER = (  # scheme://user:password@; with HTTP a user alone is a token
    r"(?i)(\b(?:https?://|[a-z][a-z0-9+.-]{1,20}://(?=[^/?#\s\"'<>\\@]*:)))[^/?#\s\"'<>\\]+(?=@)"
)
_URL_QUERY = r"(?i)([?&;](?:[\w.]+-)*(?:key|sig|signature)=)[^\s&#;\"'\\]+"
_AUTHORIZATION = (
    r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+ )?+|\bbearer )[\w.~+/=-]{6,}"
)
_COOKIE = r"(?i)(\bcookie: ?)[^\r\n\"'\\]{6,}"
_SHAPES = [
    *(
        (prefix.lower(), re.compile(rf"\b(){re.escape(prefix)}{rest}"))
        for prefix, rest in _TOKENS.items()
    ),
    ("private key-----", re.compile(_PRIVATE_KEY)),
    ("://", re.compile(_URL_USER)),
    ("key=", re.compile(_URL_QUERY)),
    ("sig", re.compile(_URL_QUERY)),
    ("authorization", re.compile(_AUTHORIZATION)),
    ("bearer ", re.compile(_AUTHORIZATION)),
    ("cookie:", re.compile(_COOKIE)),
]
"""What a lower-case text contains if the pattern can match it."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_NAME_OF_VALUE = re.compile(  # name='value', "name": "value", name=value, name: value, --name value
    r"(?<![\w.-])(?P<name>[\w.-]++)(?:\\?[\"']?\s*[=:]\s*(?P<quote>\\?[\"'])|=|(?P<colon>: +))"
    r"|(?<!\S)(?P<option>--[\w.-]++) +"
)
"""A name, up to where its value begins."""
_BARE_VALUE = re.compile(r"[^\s&,;#\"'\\<>()\[\]{}]*")


def looks_secret(name: str, value: object = "") -> bool:
    """Whether a setting or variable of this name holds a secret: ``api_key``, ``dbPassword``, ``HF_TOKEN``.

    Whole words at the end of the name count, so ``num_tokens``, ``token_dim`` and ``author`` do not. A few
    names, such as ``stripe_key``, depend on the value.
    """
    is_secret = _is_secret_name(name)
    return _looks_random(str(value)) if is_secret is None else is_secret


@functools.lru_cache(4096)
def _is_secret_name(name: str) -> bool | None:
    """None if the value decides."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1] in _QUALIFIERS:
        words.pop()
    kind, last = ["", "", *words][-2:]
    if last in _UNSURE_WORDS and kind:
        if kind in _HARMLESS_KINDS:
            return False
        is_variable = name.rpartition(".")[2].isupper() and last not in _PLURALS
        return True if kind in _KINDS or is_variable else None
    return last in _SECRET_WORDS or last.endswith(_ENDINGS)


def _looks_random(value: str) -> bool:
    """Whether it has 16 or more letters and digits in a row, as keys do and names seldom do."""
    return any(sum(map(str.isdigit, run)) > 1 for run in _RUN.findall(value))


def secret_parts(text: str) -> Iterator[tuple[int, int]]:
    """Where a text has something of a secret shape, or a value after a secret name; parts may overlap."""
    lowered = text.lower()
    for hint, shape in _SHAPES:
        if hint in lowered:
            yield from ((found.end(1), found.end()) for found in shape.finditer(text))
    reached = 0
    for match in _NAME_OF_VALUE.finditer(text):
        if match.start() >= reached and _may_name_secret(match):
            begin, end = match.end(), _end_of_value(match)
            if end > begin and looks_secret(match["name"] or match["option"], text[begin:end]):
                yield begin, end
                reached = end


def _may_name_secret(match: re.Match[str]) -> bool:
    name = match["name"] or match["option"]
    is_prose = match["colon"] and name.lower() in _PROSE
    is_reference = REFERENCE.match(match.string, match.end())
    return _is_secret_name(name) is not False and not is_prose and not is_reference


def _end_of_value(match: re.Match[str]) -> int:
    """Where a value ends: at its quote, at that of the whole argument, or at the next separator."""
    text, begin = match.string, match.end()
    before = text[max(match.start() - 1, 0) : match.start()]
    mark = match["quote"] or (before if before in ("'", '"') and text[begin - 1] == "=" else "")
    if not mark:
        return _BARE_VALUE.match(text, begin).end()  # type: ignore[union-attr]  # it matches anything
    end = text.find(mark, begin)
    return len(text) if end < 0 else end
