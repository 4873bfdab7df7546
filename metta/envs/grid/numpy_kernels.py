"""One step of many grid worlds, and what their agents see, in NumPy: the reference of the C kernels.

Agents of one world act one after the other; worlds are independent, so each turn is taken in all
worlds at once. The functions have the names and arguments of the C kernels and give the same bits.
"""

import numpy as np

from metta.envs.grid.layout import COUNT_NAMES, Cell, Setting, WorldArrays
from metta.envs.grid.numpy_generation import begin_episode, map_compass, put_back

__all__ = ["refresh", "reset", "step"]

_GATHERED, _DELIVERED, _DOORS_OPENED, _BLOCKED = range(len(COUNT_NAMES))
_HIGHEST = 7
_TERMINATED, _TRUNCATED = 1, 2


def reset(arrays: tuple[np.ndarray, ...], radius: int, obs: np.ndarray) -> None:
    """Begin the first episode of every world and write observations ``[W * A, size]``."""
    worlds = WorldArrays(*arrays)
    worlds.episodes[:] = 0
    for index in range(len(worlds.seeds)):
        begin_episode(worlds, radius, index)
    _observe(worlds, radius, np.arange(len(worlds.seeds)), obs)


def refresh(arrays: tuple[np.ndarray, ...], radius: int) -> None:
    """Draw the compass of every world anew, from its cells."""
    worlds = WorldArrays(*arrays)
    for index in range(len(worlds.seeds)):
        map_compass(worlds, radius, index)


def step(  # noqa: PLR0913 - the arguments of the C kernel: every array that it writes
    arrays: tuple[np.ndarray, ...],
    radius: int,
    first_world: int,
    actions: np.ndarray,
    obs: np.ndarray,
    final_obs: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    starts: np.ndarray,
    ended_counts: np.ndarray,
) -> int:
    """Step the worlds from `first_world` on, as many as there are actions for.

    All outputs have one row per agent. 1 where a world terminated, plus 2 where one was truncated.
    """
    worlds = WorldArrays(*arrays)
    num_agents = worlds.positions.shape[1]
    indices = np.arange(first_world, first_world + len(actions) // num_agents)
    settings = worlds.settings[worlds.tasks[indices]]
    did = _play_turns(worlds, indices, settings, actions.reshape(-1, num_agents))
    worlds.counts[indices] += did
    rewards[:] = _rewards_of(worlds, indices, did).reshape(-1)
    worlds.steps[indices] += 1
    for index in indices[worlds.missing[indices] > 0].tolist():
        put_back(worlds, radius, index)
    goals, delivered = settings[:, Setting.GOAL], worlds.counts[indices, :, _DELIVERED].sum(axis=1)
    is_done = (goals > 0) & (delivered >= goals)
    is_cut = ~is_done & (worlds.steps[indices] >= settings[:, Setting.HORIZON])
    terminated[:] = np.repeat(is_done, num_agents)
    truncated[:] = np.repeat(is_cut, num_agents)
    starts[:] = np.repeat(is_done | is_cut, num_agents)
    if is_cut.any():
        last = np.empty((int(is_cut.sum()) * num_agents, obs.shape[1]), np.uint8)
        _observe(worlds, radius, indices[is_cut], last)
        final_obs[truncated] = last
    for index in indices[is_done | is_cut].tolist():
        rows = slice((index - first_world) * num_agents, (index - first_world + 1) * num_agents)
        ended_counts[rows] = worlds.counts[index]
        worlds.episodes[index] += 1
        begin_episode(worlds, radius, index)
    _observe(worlds, radius, indices, obs)
    return _TERMINATED * bool(is_done.any()) + _TRUNCATED * bool(is_cut.any())


def _play_turns(
    worlds: WorldArrays, indices: np.ndarray, settings: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """All agents' turns, from the one whose number is step % num_agents on; what each did ``[n, A, 4]``."""
    num_agents, stride = worlds.positions.shape[1], worlds.cells.shape[2]
    moves = np.array([0, -stride, 1, stride, -1])
    cells = worlds.cells.reshape(len(worlds.cells), -1)
    capacity, respawns = settings[:, Setting.CAPACITY], settings[:, Setting.RESPAWNS]
    did = np.zeros((len(indices), num_agents, len(COUNT_NAMES)), np.int32)
    local, first = np.arange(len(indices)), worlds.steps[indices] % num_agents
    for turn in range(num_agents):
        agent = (first + turn) % num_agents
        here = indices, agent
        action, start = actions[local, agent], worlds.positions[here]
        target, cargo, keys = start + moves[action], worlds.cargo[here], worlds.keys[here]
        code, is_moving = cells[indices, target], action != 0
        takes = is_moving & (code == Cell.RESOURCE) & (cargo < capacity)
        opens = is_moving & (code == Cell.DOOR) & (keys > 0)
        finds = is_moving & (code == Cell.KEY)
        at_depot = is_moving & (code == Cell.DEPOT)
        enters = takes | opens | finds | (is_moving & (code == Cell.EMPTY))
        delivered = np.where(at_depot, cargo, 0)
        cargo = cargo + takes - delivered
        worlds.cargo[here] = cargo
        worlds.keys[here] = keys + finds - opens
        worlds.missing[indices] += takes & (respawns == 1)
        cells[indices[enters], start[enters]] = Cell.EMPTY
        end = np.where(enters, target, start)
        cells[indices, end] = np.where(cargo > 0, Cell.LOADED_AGENT, Cell.AGENT)
        worlds.positions[here] = end
        did[local, agent, _GATHERED] = takes
        did[local, agent, _DELIVERED] = delivered
        did[local, agent, _DOORS_OPENED] = opens
        did[local, agent, _BLOCKED] = is_moving & ~enters & (delivered == 0)
    return did


def _rewards_of(worlds: WorldArrays, indices: np.ndarray, did: np.ndarray) -> np.ndarray:
    """What events earned ``[n, A]``, in float32 and in this order of operations."""
    tasks = worlds.tasks[indices]
    gather, deliver, door, cost = worlds.reward_table[tasks].T[:, :, None]
    is_shared = worlds.settings[tasks, Setting.SHARED] == 1

    def earned(events: np.ndarray) -> np.ndarray:
        numbers = events.astype(np.float32)
        total: np.ndarray = (gather * numbers[..., 0] + deliver * numbers[..., 1]) + (
            door * numbers[..., 2]
        )
        return total

    team = earned(did.sum(axis=1, keepdims=True)) / np.float32(did.shape[1])
    result: np.ndarray = np.where(is_shared[:, None], team, earned(did)) - cost
    return result


def _observe(worlds: WorldArrays, radius: int, indices: np.ndarray, obs: np.ndarray) -> None:
    """What every agent of some worlds sees, into ``[n * A, size]``."""
    stride = worlds.cells.shape[2]
    cells = worlds.cells.reshape(len(worlds.cells), -1)
    around = np.arange(-radius, radius + 1)
    window = (around[:, None] * stride + around).reshape(-1)
    positions, size = worlds.positions[indices], len(window)
    views = cells[indices[:, None, None], positions[:, :, None] + window]
    views[:, :, size // 2] = Cell.EMPTY
    obs[:, :size] = views.reshape(-1, size)
    obs[:, size] = worlds.cargo[indices].reshape(-1)
    obs[:, size + 1] = np.minimum(worlds.keys[indices], _HIGHEST).reshape(-1)
    compass = worlds.compass.reshape(len(worlds.compass), -1)
    obs[:, size + 2] = compass[indices[:, None], positions].reshape(-1)
    horizons = worlds.settings[worlds.tasks[indices], Setting.HORIZON]
    clock = np.minimum(8 * worlds.steps[indices].astype(np.int64) // horizons, _HIGHEST)
    obs[:, size + 3] = np.repeat(clock, positions.shape[1])
