"""Files that touch a canary when they are opened carelessly, and a careless reader for each."""

import bz2
import copyreg
import gzip
import io
import json
import lzma
import marshal
import os
import pickle
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml


class Payload(NamedTuple):
    """Bytes, and who would run what is in them."""

    content: bytes
    detonate: Callable[[bytes], Any]


class _Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class _Kept:
    """Pickles as an object that is given a state, in which the call hides."""

    def __init__(self, bomb: Any) -> None:
        self.bomb = bomb


def _touch(canary: str) -> str:
    return f"touch '{canary}'"


def _open(canary: str) -> str:
    return f"open({canary!r}, 'w').close()"


def _text_pickles(canary: str) -> dict[str, bytes]:
    """Written by hand, opcode by opcode."""
    command = _touch(canary).encode()
    system, quoted = b"cos\nsystem\n", b"S" + repr(_touch(canary)).encode() + b"\n"
    unicode = b"X" + struct.pack("<I", len(command)) + command
    copyreg_code = b"\x82\xf0"
    return {
        "GLOBAL and REDUCE": system + b"(" + quoted + b"tR.",
        "INST": b"(" + quoted + b"ios\nsystem\n.",
        "OBJ": b"(" + system + quoted + b"o.",
        "INST of builtins": b"(S" + repr(_open(canary)).encode() + b"\nibuiltins\nexec\n.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93(" + unicode + b"tR.",
        "memo": b"\x80\x02" + system + b"q\x01h\x01(" + unicode + b"tR.",
        "EXT1": b"\x80\x02" + copyreg_code + b"(" + unicode + b"tR.",
        "LONG_BINPUT": b"\x80\x02" + system + b"r\1\0\0\0" + b"j\1\0\0\0(" + unicode + b"tR.",
        "noise before": b"\x80\x02" + b"N0" * 50_000 + system + b"(" + unicode + b"tR.",
        "a text before": b"S'" + b"x" * 1_000_000 + b"'\n0" + system + b"(" + quoted + b"tR.",
        "marks before": b"(" * 999 + system + b"(" + quoted + b"tR.",
        "a dictionary": b"(dS'weights'\n" + system + b"(" + quoted + b"tRs.",
        "a list": b"]" + system + b"(" + quoted + b"tRa.",
        "more behind the end": system + b"(" + quoted + b"tR." + b"\0" * 4096,
        "a harmless one before": pickle.dumps({"a": 1}) + system + b"(" + quoted + b"tR.",
    }


def _calls(canary: str) -> dict[str, Any]:
    return {
        "os.system": _Call(os.system, _touch(canary)),
        "exec": _Call(exec, _open(canary)),
        "eval": _Call(eval, _open(canary)),
        "subprocess": _Call(subprocess.check_output, ["touch", canary]),
        "open": _Call(open, canary, "w"),
        "state": _Kept(_Call(os.system, _touch(canary))),
        "nested": {"weights": [1, (2, _Call(os.system, _touch(canary)))]},
    }


def _zip(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def _tar(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        about = tarfile.TarInfo("data.pkl")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    return buffer.getvalue()


def _torch(bomb: Any, *, new: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(2), "x": bomb}, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def _numpy(bomb: Any, save: Callable[..., Any]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, np.array([bomb], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _tensor_file(content: bytes) -> bytes:
    entry = {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}
    header = json.dumps({"pickle": entry}).encode()
    return len(header).to_bytes(8, "little") + header + content


def _load_all(content: bytes) -> None:
    stream = io.BytesIO(content)
    while stream.tell() < len(content):
        pickle.load(stream)


def _load_extension(content: bytes) -> None:
    copyreg.add_extension("os", "system", 0xF0)
    pickle.loads(content)


def _in_zip(name: str) -> Callable[[bytes], Any]:
    return lambda content: pickle.loads(zipfile.ZipFile(io.BytesIO(content)).read(name))


def _in_tar(content: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        pickle.loads(archive.extractfile("data.pkl").read())


def _load_torch(content: bytes) -> None:
    torch.load(io.BytesIO(content), weights_only=False)


def _load_numpy(content: bytes) -> None:
    found = np.load(io.BytesIO(content), allow_pickle=True)
    if isinstance(found, np.lib.npyio.NpzFile):
        found["arr_0"]


def _after(first: int) -> Callable[[bytes], Any]:
    return lambda content: pickle.loads(content[first:])


def payloads(canary: str) -> dict[str, Payload]:
    """All of them, by name; each touches `canary` when it is opened by its own `detonate`."""
    found: dict[str, Payload] = {}
    for name, call in _calls(canary).items():
        protocols = range(6) if name in ("os.system", "exec") else (0, 4)
        for number in protocols:
            content = pickle.dumps(call, number)
            found[f"{name}, protocol {number}"] = Payload(content, pickle.loads)
    special = {"EXT1": _load_extension, "a harmless one before": _load_all}
    for name, content in _text_pickles(canary).items():
        found[name] = Payload(content, special.get(name, pickle.loads))
    return found | _archives(canary) | _disguises(canary) | _texts(canary)


def _archives(canary: str) -> dict[str, Payload]:
    bomb = _Call(os.system, _touch(canary))
    raw = pickle.dumps(bomb)
    archive = _torch(bomb, new=True)
    return {
        "torch zip": Payload(archive, _load_torch),
        "torch legacy": Payload(_torch(bomb, new=False), _load_torch),
        "zip": Payload(_zip("data.pkl", raw), _in_zip("data.pkl")),
        "zip in a zip": Payload(
            _zip("inner.zip", archive),
            lambda content: _load_torch(zipfile.ZipFile(io.BytesIO(content)).read("inner.zip")),
        ),
        "zip behind other bytes": Payload(
            b"\x89" * 4096 + _zip("data.pkl", raw), _in_zip("data.pkl")
        ),
        "tar": Payload(_tar(raw), _in_tar),
        "gzip": Payload(gzip.compress(raw), lambda content: pickle.loads(gzip.decompress(content))),
        "bz2": Payload(bz2.compress(raw), lambda content: pickle.loads(bz2.decompress(content))),
        "xz": Payload(lzma.compress(raw), lambda content: pickle.loads(lzma.decompress(content))),
        "zlib": Payload(zlib.compress(raw), lambda content: pickle.loads(zlib.decompress(content))),
        "npy": Payload(_numpy(bomb, np.save), _load_numpy),
        "npz": Payload(
            _numpy(bomb, lambda buffer, array, **_: np.savez(buffer, array)), _load_numpy
        ),
    }


def _disguises(canary: str) -> dict[str, Payload]:
    raw = pickle.dumps(_Call(os.system, _touch(canary)))
    spoofed = (len(raw) + 1).to_bytes(8, "little") + b"{"
    whole = _tensor_file(raw)
    return {
        "behind the mark of safetensors": Payload(spoofed + raw, _after(len(spoofed))),
        "behind an empty header": Payload(b"\2" + bytes(7) + b"{}" + raw, _after(10)),
        "in the data of a tensor": Payload(whole, _after(len(whole) - len(raw))),
        "behind JSON": Payload(b"{}\n" + raw, _after(3)),
        "behind a comment": Payload(b"# metta\n" + raw, _after(8)),
        "behind zeros": Payload(bytes(4096) + raw, _after(4096)),
        "marshalled": Payload(
            marshal.dumps(compile(_open(canary), "x", "exec")),
            lambda content: exec(marshal.loads(content)),
        ),
    }


def _texts(canary: str) -> dict[str, Payload]:
    """What other readers of text would run."""

    def text(content: str, detonate: Callable[[str], Any]) -> Payload:
        return Payload(content.encode(), lambda given: detonate(given.decode()))

    command = json.dumps(_touch(canary))
    return {
        "YAML apply": text(f"!!python/object/apply:os.system [{command}]", yaml.unsafe_load),
        "YAML apply in a value": text(
            f"trainer:\n  seed: !!python/object/apply:os.system [{command}]\n", yaml.unsafe_load
        ),
        "YAML new": text(f"seed: !!python/object/new:os.system [{command}]\n", yaml.unsafe_load),
        "Python": text(_open(canary), exec),
        "a JSON of Python": text(
            json.dumps({"format": "metta-policy", "code": _open(canary)}),
            lambda given: exec(json.loads(given)["code"]),
        ),
        "a JSON of a class": text(
            json.dumps({"_target_": "os.system", "_args_": [_touch(canary)]}),
            lambda given: os.system(json.loads(given)["_args_"][0]),
        ),
    }
