"""Hand-made tensor files: headers that ask for too much, or do not fit their data."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

Header = dict[str, Any]
Lie = Callable[[Header, bytes, Random], bytes]

_METADATA = "__metadata__"
_SAME_SIZE = {"F32": "I32", "I64": "F64", "F64": "I64", "U8": "I8", "BOOL": "U8", "I32": "U32"}


def split(content: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensors_in(header: Header) -> list[str]:
    return [name for name in header if name != _METADATA]


def _length(value: int) -> Lie:
    return lambda header, data, _: joined(header, data, value)


def _entry(change: Callable[[Header], Any]) -> Lie:
    """Another description of one tensor, whichever it is."""

    def lie(header: Header, data: bytes, random: Random) -> bytes:
        sizes = {name: header[name]["data_offsets"] for name in tensors_in(header)}
        filled = [name for name, (begin, end) in sizes.items() if end > begin]
        change(header[random.choice(filled)])
        return joined(header, data)

    return lie


def _set(**values: Any) -> Lie:
    return _entry(lambda entry: entry.update(values))


def _text(change: Callable[[str], str]) -> Lie:
    return lambda header, data, _: joined(change(json.dumps(header)), data)


def _header(change: Callable[[Header, Random], Any]) -> Lie:
    def lie(header: Header, data: bytes, random: Random) -> bytes:
        change(header, random)
        return joined(header, data)

    return lie


def _many(count: int) -> Lie:
    entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    more = ",".join(f'"x{number}":{entry}' for number in range(count))
    return _text(lambda text: f"{text[:-1]},{more}}}")


def _overlap(header: Header, random: Random) -> None:
    first, second = random.sample(tensors_in(header), 2)
    header[first] = dict(header[second])


def _wider(entry: Header) -> None:
    entry["shape"] = [*entry["shape"], 2]


def _exchange_names(header: Header, data: bytes, random: Random) -> bytes:
    """Each of two tensors under the other's name; two that are not equal."""
    contents = {}
    for name in tensors_in(header):
        entry = header[name]
        first, last = entry["data_offsets"]
        contents[name] = entry["dtype"], entry["shape"], data[first:last]
    one = random.choice(list(contents))
    other = random.choice([name for name in contents if contents[name] != contents[one]])
    header[one], header[other] = header[other], header[one]
    return joined(header, data)


def _other_name(header: Header, random: Random) -> None:
    name = random.choice(tensors_in(header))
    header[random.choice(["", "../../x", "x" * 5000, "\ud800", name + "\0", name.upper()])] = (
        header.pop(name)
    )


def _sparse(header: Header, data: bytes, _: Random) -> bytes:
    size = 2**50
    header["more"] = {"dtype": "U8", "shape": [size], "data_offsets": [len(data), len(data) + size]}
    return joined(header, data)


STRUCTURAL: dict[str, Lie] = {
    "header of 2^63 bytes": _length(2**63),
    "header of 2^64 - 1 bytes": _length(2**64 - 1),
    "header of 2^31 bytes": _length(2**31),
    "header of no bytes": _length(0),
    "header one byte short": lambda h, data, _: joined(h, data, len(json.dumps(h)) - 1),
    "header of 9 MB": _text(lambda text: text + " " * 9_000_000),
    "a million entries": lambda _h, data, _r: joined('{"":{},' * 1_000_000, data),
    "20,001 more tensors": _many(20_001),
    "300,000 short texts": _text(lambda text: f'{text[:-1]},"x":[{"0," * 300_000}0]}}'),
    "deep brackets": _text(lambda text: f'{text[:-1]},"x":{"[" * 100_000}'),
    "deep objects": _text(lambda text: text[:-1] + ',"x":' + '{"a":' * 100_000),
    "brackets closed": _text(lambda text: f'{text[:-1]},"x":{"[" * 900 + "]" * 900}}}'),
    "a tensor twice": _text(lambda text: f"{text[:-1]},{text[1:]}"),
    "a tensor over another": _header(_overlap),
    "an unknown type": _set(dtype="F8_E4M3"),
    "a complex type": _set(dtype="C64"),
    "a type that is no text": _set(dtype=7),
    "a type that is a list": _set(dtype=["F32"]),
    "a shape that overflows": _set(shape=[2**62, 2**62, 2**62]),
    "a shape that overflows to itself": _set(shape=[2**32, 2**32, 2]),
    "an overflow behind a zero": _set(shape=[0, 2**62, 2**62]),
    "a negative shape": _set(shape=[-1, -8]),
    "a shape of floats": _set(shape=[1.0]),
    "a shape of booleans": _set(shape=[True]),
    "a shape of texts": _set(shape=["1"]),
    "a shape that is none": _set(shape=None),
    "a shape of many ones": _set(shape=[1] * 5000),
    "one size more": _entry(_wider),
    "offsets backwards": _entry(lambda entry: entry["data_offsets"].reverse()),
    "offsets at 2^63": _set(data_offsets=[2**63 - 4, 2**63]),
    "offsets below zero": _set(data_offsets=[-8, -4]),
    "offsets of texts": _set(data_offsets=["0", "4"]),
    "three offsets": _entry(lambda entry: entry["data_offsets"].append(0)),
    "no offsets": _entry(lambda entry: entry.pop("data_offsets")),
    "one key more": _set(code="os.system"),
    "a tensor that is a text": _header(lambda h, r: h.update({r.choice(tensors_in(h)): "x"})),
    "a tensor left out": _header(lambda h, r: h.pop(r.choice(tensors_in(h)))),
    "a tensor of 2^50 bytes": _sparse,
    "metadata of numbers": _header(lambda h, _: h.update({_METADATA: {"manifest": 1}})),
    "metadata that is a list": _header(lambda h, _: h.update({_METADATA: []})),
    "a digit bomb": _text(lambda text: f'{text[:-1]},"x":{"9" * 100_000}}}'),
    "an empty object": lambda _h, data, _r: joined("{}", data),
    "a list": lambda _h, data, _r: joined("[]", data),
}
"""Every reader refuses these, even if the digests around them are right."""

QUIET: dict[str, Lie] = {
    "another type of the same size": _header(
        lambda h, r: [
            h[name].update(dtype=_SAME_SIZE.get(h[name]["dtype"], "BOOL"))
            for name in r.sample(tensors_in(h), 1)
        ]
    ),
    "two tensors exchanged": _exchange_names,
    "another name": _header(_other_name),
    "a shape turned round": _header(
        lambda h, _: [h[name]["shape"].reverse() for name in tensors_in(h)]
    ),
}
"""Sound files with other content: a digest detects them."""


def _manifest(change: Callable[[Header], Any]) -> Lie:
    def lie(header: Header, data: bytes, _: Random) -> bytes:
        manifest = json.loads(header[_METADATA]["manifest"])
        change(manifest)
        header[_METADATA]["manifest"] = json.dumps(manifest)
        return joined(header, data)

    return lie


def _raw_manifest(text: str) -> Lie:
    return _header(lambda h, _: h[_METADATA].update(manifest=text))


_JUNK: list[Any] = [None, [], {}, "x", -1, 2**80, 1e308, [[[]]], {"$code": "os.system"}, True]


def _junk_in(header: Header, data: bytes, random: Random) -> bytes:
    """A value of another kind under a key of the manifest, whichever it is."""
    manifest = json.loads(header[_METADATA]["manifest"])
    key = random.choice(list(manifest))
    manifest[key] = random.choice([junk for junk in _JUNK if junk != manifest[key]])
    header[_METADATA]["manifest"] = json.dumps(manifest)
    return joined(header, data)


def _key_gone(header: Header, data: bytes, random: Random) -> bytes:
    manifest = json.loads(header[_METADATA]["manifest"])
    # without the digest the file is one of an old version, and as sound as before
    manifest.pop(random.choice([key for key in manifest if key != "content_sha256"]))
    header[_METADATA]["manifest"] = json.dumps(manifest)
    return joined(header, data)


MANIFEST: dict[str, Lie] = {
    "no metadata": _header(lambda h, _: h.pop(_METADATA)),
    "no manifest": _header(lambda h, _: h[_METADATA].pop("manifest")),
    "a manifest of a later version": _manifest(lambda m: m.update(format_version=99)),
    "a manifest of another format": _manifest(lambda m: m.update(format="metta-other")),
    "a manifest that says more": _manifest(lambda m: m.update(entry_point="os:system")),
    "a digest of other bytes": _manifest(lambda m: m.update(content_sha256="0" * 64)),
    "a digest that is a list": _manifest(lambda m: m.update(content_sha256=[])),
    "a manifest of brackets": _raw_manifest("[" * 100_000),
    "a manifest of many values": _raw_manifest("[" + "{}," * 700_000 + "{}]"),
    "a manifest of 7 MB of text": _raw_manifest('{"format":"' + "x" * 7_000_000 + '"}'),
    "a manifest with a key twice": _raw_manifest('{"format":1,"format":2}'),
    "a manifest that is no JSON": _raw_manifest("__import__('os')"),
    "a manifest that is nothing": _raw_manifest(""),
    "a manifest that is null": _raw_manifest("null"),
    "another value in the manifest": _junk_in,
    "a key of the manifest gone": _key_gone,
}
