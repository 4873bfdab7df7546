"""How a grid world is built from its seed, in Python: the same numbers as the C kernels, to the bit.

Random numbers are splitmix64 (Steele, Lea and Flood 2014) of a counter, so that every one of them is a
function of the world's seed, the episode and the counter alone.
"""

from dataclasses import dataclass

import numpy as np

from metta.envs.grid.layout import Cell, Setting, WorldArrays
from metta.errors import EnvError

__all__ = ["begin_episode", "episode_stream", "map_compass", "put_back"]

_GAMMA = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF
_BUILD_ATTEMPTS = 32
_WALLED_ATTEMPTS = 16
_PLACE_TRIES = 16
_IS_OPEN = bytes(code not in (Cell.WALL, Cell.RESOURCE, Cell.DEPOT) for code in Cell)
"""Ground that an agent can stand on, now or later; resources and depots may be in the way."""
_OBSTACLES = (Cell.RESOURCE, Cell.DEPOT)


def _mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mixed_array(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def episode_stream(seed: int, episode: int) -> int:
    """What the random numbers of a world's episode are counted from."""
    return _mixed((_mixed((seed + _GAMMA) & _MASK) + episode * _GAMMA) & _MASK)


@dataclass
class _Site:
    """One world while things are put into it."""

    cells: memoryview
    stride: int
    radius: int
    settings: list[int]
    stream: int
    draws: int

    def draw(self) -> int:
        """The upper half of the next random number."""
        self.draws += 1
        return _mixed((self.stream + self.draws * _GAMMA) & _MASK) >> 32

    def draw_below(self, bound: int) -> int:
        return (self.draw() * bound) >> 32

    def draw_many(self, count: int) -> np.ndarray:
        counters = np.arange(self.draws + 1, self.draws + 1 + count, dtype=np.uint64)
        self.draws += count
        mixed = _mixed_array(np.uint64(self.stream) + counters * np.uint64(_GAMMA))
        return mixed >> np.uint64(32)

    def place_of(self, row: int, column: int) -> int:
        return (row + self.radius) * self.stride + column + self.radius

    def columns_of(self, room: int) -> tuple[int, int]:
        """First and last column of a room."""
        num_rooms = self.settings[Setting.ROOMS]
        base, wider = divmod(self.settings[Setting.WIDTH] - 1 - num_rooms, num_rooms)
        left = 1 + room * (base + 1) + min(room, wider)
        return left, left + base - (0 if room < wider else 1)

    def may_fill(self, at: int) -> bool:
        """Whether something may stand on empty ground for good.

        What was connected stays connected, doors stay free on both sides, and every resource and depot
        keeps open ground beside it. The check is local: the open ones of the four neighbours are
        connected through the eight.
        """
        cells, down = self.cells, self.stride
        sides = (at - down, at + 1, at + down, at - 1)
        corners = (at - down + 1, at + down + 1, at + down - 1, at - down - 1)
        side_open = [_IS_OPEN[cells[side]] for side in sides]
        corner_open = [_IS_OPEN[cells[corner]] for corner in corners]
        num_parts = sum(
            side_open[i] and not (corner_open[i] and side_open[(i + 1) % 4]) for i in range(4)
        )
        if num_parts != 1 and sum(side_open) + sum(corner_open) != 8:
            return False
        for side in sides:
            if cells[side] == Cell.DOOR:
                return False
            if cells[side] in _OBSTACLES:
                beside = (side - down, side + 1, side + down, side - 1)
                if sum(_IS_OPEN[cells[place]] for place in beside) < 2:
                    return False
        return True

    def put(self, columns: tuple[int, int], code: Cell) -> int:
        """Put a thing on a random cell; its place, or -1 if there is none."""
        width = columns[1] - columns[0] + 1
        num_cells = width * (self.settings[Setting.HEIGHT] - 2)
        start = 0
        for attempt in range(_PLACE_TRIES + num_cells):
            if attempt <= _PLACE_TRIES:
                start = self.draw_below(num_cells)
            cell = (start + max(0, attempt - _PLACE_TRIES)) % num_cells
            at = self.place_of(1 + cell // width, columns[0] + cell % width)
            if self.cells[at] == Cell.EMPTY and (code not in _OBSTACLES or self.may_fill(at)):
                self.cells[at] = code
                return at
        return -1


def _site_of(worlds: WorldArrays, radius: int, index: int) -> _Site:
    return _Site(
        cells=memoryview(worlds.cells[index].reshape(-1)),
        stride=worlds.cells.shape[2],
        radius=radius,
        settings=worlds.settings[worlds.tasks[index]].tolist(),
        stream=episode_stream(int(worlds.seeds[index]), int(worlds.episodes[index])),
        draws=int(worlds.draws[index]),
    )


def _build_walls(site: _Site, threshold: int) -> None:
    """Walls around, rooms in a row, a door between two of them, and inner walls that cut nothing off."""
    height, num_rooms = site.settings[Setting.HEIGHT], site.settings[Setting.ROOMS]
    site.cells[:] = bytes([Cell.WALL]) * len(site.cells)
    for room in range(num_rooms):
        left, right = site.columns_of(room)
        for row in range(1, height - 1):
            start = site.place_of(row, left)
            site.cells[start : start + right - left + 1] = bytes(right - left + 1)
        if room + 1 < num_rooms:
            site.cells[site.place_of(1 + site.draw_below(height - 2), right + 1)] = Cell.DOOR
    for room in range(num_rooms):
        left, right = site.columns_of(room)
        width = right - left + 1
        allowed = (width * (height - 2) * threshold) >> 32
        chosen = np.flatnonzero(site.draw_many(width * (height - 2)) < np.uint64(threshold))
        for cell in chosen.tolist():
            at = site.place_of(1 + cell // width, left + cell % width)
            if allowed > 0 and site.may_fill(at):
                site.cells[at] = Cell.WALL
                allowed -= 1


def _place_things(site: _Site, positions: np.ndarray) -> bool:
    """Put everything into the world: depots and resources go round the rooms, keys lie before doors.

    False if something found no place.
    """
    settings = site.settings
    num_rooms = settings[Setting.ROOMS]
    placed = [
        site.put(site.columns_of(i % num_rooms), Cell.DEPOT)
        for i in range(settings[Setting.DEPOTS])
    ]
    placed += [
        site.put(site.columns_of(num_rooms - 1 - i % num_rooms), Cell.RESOURCE)
        for i in range(settings[Setting.RESOURCES])
    ]
    for i in range(settings[Setting.KEYS]):
        room = site.draw_below(1 + i % (num_rooms - 1)) if num_rooms > 1 else 0
        placed.append(site.put(site.columns_of(room), Cell.KEY))
    for agent in range(len(positions)):
        positions[agent] = site.put(site.columns_of(0), Cell.AGENT)
    return min(placed, default=0) >= 0 and int(positions.min()) >= 0


def begin_episode(worlds: WorldArrays, radius: int, index: int) -> None:
    """Begin the episode whose number is in `episodes`, with the task that is next."""
    worlds.tasks[index] = worlds.next_tasks[index]
    for array in (worlds.draws, worlds.steps, worlds.missing, worlds.cargo, worlds.keys):
        array[index] = 0
    worlds.counts[index] = 0
    site = _site_of(worlds, radius, index)
    for attempt in range(_BUILD_ATTEMPTS):
        is_walled = attempt < _WALLED_ATTEMPTS
        _build_walls(site, site.settings[Setting.WALL_THRESHOLD] if is_walled else 0)
        if _place_things(site, worlds.positions[index]):
            break
    worlds.draws[index] = site.draws
    if worlds.positions[index].min() < 0:
        raise EnvError("a world has no room for its agents; ask for fewer, or for a larger world")
    map_compass(worlds, radius, index)


def put_back(worlds: WorldArrays, radius: int, index: int) -> None:
    """Let gathered resources of a world appear again, as far as there is room."""
    site = _site_of(worlds, radius, index)
    everywhere = (1, site.settings[Setting.WIDTH] - 2)
    while worlds.missing[index] > 0 and site.put(everywhere, Cell.RESOURCE) >= 0:
        worlds.missing[index] -= 1
    worlds.draws[index] = site.draws


def map_compass(worlds: WorldArrays, radius: int, index: int) -> None:
    """Note for every cell the octant in which the nearest depot lies: 0 is north, 1 north-east, ...

    Nearest by Chebyshev distance, and of equals the first one row by row. A direction is straight where
    one leg is more than twice the other. Without depots everything is 0.
    """
    settings = worlds.settings[worlds.tasks[index]]
    height, width = int(settings[Setting.HEIGHT]), int(settings[Setting.WIDTH])
    inside = slice(radius, radius + height), slice(radius, radius + width)
    worlds.compass[index] = 0
    depots = np.argwhere(worlds.cells[index][inside] == Cell.DEPOT)
    if not len(depots):
        return
    down = depots[:, 0, None, None] - np.arange(height)[:, None]
    right = depots[:, 1, None, None] - np.arange(width)
    nearest = np.maximum(np.abs(down), np.abs(right)).argmin(axis=0)[None]
    down = np.take_along_axis(np.broadcast_to(down, (len(depots), height, width)), nearest, 0)[0]
    right = np.take_along_axis(np.broadcast_to(right, (len(depots), height, width)), nearest, 0)[0]
    vertical, horizontal = np.abs(down), np.abs(right)
    diagonal = np.where(right > 0, np.where(down < 0, 1, 3), np.where(down < 0, 7, 5))
    diagonal[(down == 0) & (right == 0)] = 0
    worlds.compass[index][inside] = np.select(
        [2 * horizontal < vertical, 2 * vertical < horizontal],
        [np.where(down < 0, 0, 4), np.where(right < 0, 6, 2)],
        diagonal,
    )
