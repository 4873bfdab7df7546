"""What disks, transfers and careless programs do to bytes."""

from collections.abc import Callable
from random import Random

Damage = Callable[[bytes, Random], bytes]


def _cut(share: float) -> Damage:
    return lambda content, _: content[: int(len(content) * share)]


def _flip(first: float, last: float) -> Damage:
    """One bit, between two shares of the bytes."""

    def damage(content: bytes, random: Random) -> bytes:
        begin = int(first * len(content))
        number = random.randrange(begin * 8, max(int(last * len(content)), begin + 1) * 8)
        return _with(content, number // 8, bytes([content[number // 8] ^ 1 << number % 8]))

    return damage


def _flip_length(content: bytes, random: Random) -> bytes:
    number = random.randrange(64)
    return _with(content, number // 8, bytes([content[number // 8] ^ 1 << number % 8]))


def _flips(content: bytes, random: Random) -> bytes:
    for _ in range(random.randint(2, 20)):
        content = _flip(0, 1)(content, random)
    return content


def _with(content: bytes, at: int, piece: bytes) -> bytes:
    return content[:at] + piece + content[at + len(piece) :]


def _place(content: bytes, random: Random, longest: int = 64) -> tuple[int, int]:
    length = random.randint(1, min(longest, len(content)))
    return random.randrange(len(content) - length + 1), length


def _overwrite(piece: Callable[[int, Random], bytes]) -> Damage:
    def damage(content: bytes, random: Random) -> bytes:
        at, length = _place(content, random)
        return _with(content, at, piece(length, random))

    return damage


def _insert(content: bytes, random: Random) -> bytes:
    at, length = _place(content, random)
    return content[:at] + random.randbytes(length) + content[at:]


def _remove(content: bytes, random: Random) -> bytes:
    at, length = _place(content, random)
    return content[:at] + content[at + length :]


def _repeat(content: bytes, random: Random) -> bytes:
    at, length = _place(content, random)
    return content[:at] + content[at : at + length] + content[at:]


def _exchange(content: bytes, random: Random) -> bytes:
    length = random.randint(1, min(64, len(content) // 2))
    first = random.randrange(len(content) // 2 - length + 1)
    second = random.randrange(len(content) // 2, len(content) - length + 1)
    swapped = _with(content, first, content[second : second + length])
    return _with(swapped, second, content[first : first + length])


FIXED: dict[str, Damage] = {
    "cut to nothing": _cut(0),
    "cut to one byte": lambda content, _: content[:1],
    "cut at 25 %": _cut(0.25),
    "cut at 50 %": _cut(0.5),
    "cut at 99 %": _cut(0.99),
    "last byte gone": lambda content, _: content[:-1],
    "first byte gone": lambda content, _: content[1:],
    "a byte more": lambda content, _: content + b"\0",
    "written twice": lambda content, _: content * 2,
    "all zeros": lambda content, _: bytes(len(content)),
    "all ones": lambda content, _: b"\xff" * len(content),
    "backwards": lambda content, _: content[::-1],
}
RANDOM: dict[str, Damage] = {
    "bit flip": _flip(0, 1),
    "bit flip early": _flip(0, 0.5),
    "bit flip late": _flip(0.5, 1),
    "bit flip in the first 8 bytes": _flip_length,
    "bit flips": _flips,
    "cut anywhere": lambda content, random: content[: random.randrange(len(content))],
    "noise over a stretch": _overwrite(lambda length, random: random.randbytes(length)),
    "zeros over a stretch": _overwrite(lambda length, _: bytes(length)),
    "ones over a stretch": _overwrite(lambda length, _: b"\xff" * length),
    "bytes put in": _insert,
    "bytes taken out": _remove,
    "a stretch twice": _repeat,
    "two stretches exchanged": _exchange,
    "noise at the end": lambda content, random: content + random.randbytes(random.randint(1, 99)),
}
