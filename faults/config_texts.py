"""Hostile configurations: made to run something, to take long, or to be misunderstood."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from metta.train.parsing.schema import Leaf, leaves_of
from metta.train.parsing.yaml_text import dump_yaml
from metta.train.settings import setting_paths
from metta.train.train_config import TrainingConfig

Text = Callable[[Random, str], bytes]
"""A configuration as bytes, from random numbers and the path of a canary."""

_LEAVES: dict[str, Leaf] = leaves_of(TrainingConfig)
_WORDS = ["on", "~", "null", "NaN", ".nan", ".inf", "-.inf", "1e999", "0x", "0o9", "1:2:3", "1_", "- 1",
          "''", '"', "[", "{", "}", "]", "&a", "*a", "<<: 1", "? x", "!!int x", "|", ">-", "%YAML 9",
          "---", "...", "2024-01-01", "é", "\U0001f600", "\u2028", "\0", "\ufeff", "9" * 400]  # fmt: skip


def _laughs(levels: int, width: int) -> str:
    aliases = (", ".join([f"*a{level}"] * width) for level in range(levels))
    lines = [f"a{level}: &a{level} [{above}]" for level, above in enumerate(aliases, 1)]
    return "\n".join(["a0: &a0 [x]", *lines])


def _python(tag: str, body: str) -> Text:
    return lambda random, canary: (
        f"{_key(random)}: !!python/{tag} {body.format(canary=canary)}\n".encode()
    )


def _key(random: Random) -> str:
    return random.choice(list(_LEAVES))


def _plain(text: str) -> Text:
    return lambda *_: text.encode("utf-8", "surrogatepass")


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def _valid(random: Random) -> str:
    """A configuration that metta takes, in YAML or JSON."""
    data = TrainingConfig().to_dict()
    return json.dumps(data, indent=1) if random.random() < 0.3 else dump_yaml(data)


def _junk(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(9 if depth < 4 else 6)
    plain: list[Any] = [
        None, random.random() < 0.5, random.randint(-(2**70), 2**70), random.choice(_WORDS),
        random.uniform(-1e9, 1e9), random.choice([float("nan"), float("inf"), 10**300, -0.0, ""]),
    ]  # fmt: skip
    if kind < 6:
        return plain[kind]
    if kind == 6:
        return [_junk(random, depth + 1) for _ in range(random.randrange(4))]
    keys = [
        random.choice([*_WORDS, *setting_paths(), "trainer", "agent", "__class__"])
        for _ in range(3)
    ]
    return {key: _junk(random, depth + 1) for key in keys}


def _one_junk_value(random: Random, _: str) -> bytes:
    return json.dumps(_nested(_key(random), _junk(random))).encode()


def _junk_document(random: Random, _: str) -> bytes:
    return json.dumps(_junk(random)).encode()


def _junk_lines(random: Random, _: str) -> bytes:
    lines = []
    for _number in range(random.randint(1, 12)):
        indent = " " * random.choice([0, 0, 2, 4, 1])
        name = random.choice([*setting_paths(), *_WORDS, "trainer", "agent"])
        lines.append(f"{indent}{name}{random.choice([':', ': ', ' '])}{random.choice(_WORDS)}")
    return "\n".join(lines).encode()


def _damaged(random: Random, _: str) -> bytes:
    content = bytearray(_valid(random).encode())
    for _number in range(random.randint(1, 5)):
        at = random.randrange(len(content))
        how = random.randrange(4)
        if how == 0:
            content[at] ^= 1 << random.randrange(8)
        elif how == 1:
            del content[at : at + random.randint(1, 30)]
        elif how == 2:
            content[at:at] = random.choice(_WORDS).encode("utf-8", "surrogatepass")
        else:
            content[at:at] = random.randbytes(random.randint(1, 9))
    return bytes(content)


def _out_of_range(random: Random, _: str) -> bytes:
    path = random.choice(
        [p for p, leaf in _LEAVES.items() if leaf.kind in (int, float) and leaf.bounds]
    )
    return f"{path}: {random.choice([-(10**30), -1e300, '.nan'])}\n".encode()


def _wrong_type(random: Random, _: str) -> bytes:
    path = random.choice([p for p, leaf in _LEAVES.items() if leaf.kind in (int, float, bool)])
    return f"{path}: {random.choice(['[1]', '{a: 1}', 'words', '!!str x'])}\n".encode()


def misspelt(random: Random) -> str:
    """A setting with one letter too many, too few, or in another place; none that exists."""
    known = setting_paths()
    while True:
        name = random.choice(
            [p.rpartition(".")[2] for p in _LEAVES if len(p.rpartition(".")[2]) > 5]
        )
        at = random.randrange(1, len(name) - 1)
        spelt = random.choice(
            [name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:],
             name[:at] + name[at + 1] + name[at] + name[at + 2 :]]
        )  # fmt: skip
        if spelt not in known:
            return spelt


def _misspelt(random: Random, _: str) -> bytes:
    return f"{misspelt(random)}: 1\n".encode()


REFUSED: dict[str, Text] = {
    "python apply": _python("object/apply:os.system", "['touch {canary}']"),
    "python new": _python("object/new:os.system", "['touch {canary}']"),
    "python name": _python("name:os.system", ""),
    "python module": _python("module:antigravity", ""),
    "python apply with state": _python(
        "object/apply:builtins.exec", '{{args: [\'open("{canary}","w")\']}}'
    ),
    "python tuple": _python("tuple", "[1, 2]"),
    "a tag of one's own": _plain("seed: !boom 1"),
    "a tag by its address": _plain("seed: !<tag:yaml.org,2002:python/name:os.system> 1"),
    "laughs": lambda random, _: _laughs(random.randint(3, 9), random.randint(2, 9)).encode(),
    "an alias to itself": _plain("a: &a [*a]"),
    "a merge": _plain("x: &x {seed: 1}\ntrainer:\n  <<: *x\n"),
    "deep lists": lambda random, _: ("a: " + "[" * random.choice([40, 5000, 100_000])).encode(),
    "deep mappings": lambda random, _: ("{a: " * random.choice([40, 5000, 30_000])).encode(),
    "deep indents": lambda *_: "\n".join(" " * n + "a:" for n in range(400)).encode(),
    "deep dashes": lambda *_: ("- " * 50_000).encode(),
    "many values": lambda *_: ("a: [" + "1, " * 40_000 + "]").encode(),
    "many keys": lambda *_: "\n".join(f"k{n}: 1" for n in range(15_000)).encode(),
    "50 MB": lambda *_: b"# " + b"x" * 50_000_000,
    "many documents": lambda *_: b"---\na: 1\n" * 10_000,
    "many directives": lambda *_: b"%A 1\n" * 26_000,
    "a key twice": lambda random, _: (lambda key: f"{key}: 1\n{key}: 2\n".encode())(_key(random)),
    "a group twice": _plain("trainer: {seed: 1}\nagent: {}\ntrainer: {seed: 2}"),
    "a key that is a list": _plain("[a, b]: 1"),
    "a key that is a mapping": _plain("{a: b}: 1"),
    "a list": _plain("- seed: 1"),
    "a text": _plain("__import__('os').system('true')"),
    "a number": _plain("7"),
    "null characters": _plain("seed: 1\0"),
    "control characters": _plain("seed: 1\x1b[2J"),
    "UTF-16": lambda *_: "seed: 1".encode("utf-16"),
    "Latin-1": lambda *_: "experiment_name: caf\xe9".encode("latin-1"),
    "half a character": _plain("experiment_name: \ud800"),
    "bytes": lambda random, _: random.randbytes(random.randint(20, 2000)) + b"\xff",
    "an unknown setting": _plain("__class__: os.system"),
    "an import": _plain("agent: {name: os.system}"),
    "a target": _plain("agent: {_target_: os.system, _args_: ['true']}"),
    "a number to the base 60": lambda *_: ("seed: " + "1:" * 60_000 + "1").encode(),
    "a number of many digits": lambda *_: ("seed: " + "9" * 100_000).encode(),
    "a float of many digits": lambda *_: ("gamma: 0." + "9" * 100_000 + "x").encode(),
    "out of range": _out_of_range,
    "of another type": _wrong_type,
    "misspelt": _misspelt,
    "a secret": _plain("env_kwargs: {password: hunter2hunter2}"),
}
"""None of these is a configuration."""

ANY: dict[str, Text] = {
    "damaged": _damaged,
    "lines of junk": _junk_lines,
    "a junk value": _one_junk_value,
    "a junk document": _junk_document,
}
"""These may be one by chance."""
