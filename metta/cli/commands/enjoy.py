"""`metta enjoy`: watch a policy play new episodes."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import add_out, add_runs, add_terminal_play, written_file
from metta.cli.own_envs import importable_env
from metta.cli.policy_names import POLICY_HELP, say_choice, training_task
from metta.cli.tables import say, shown_bytes
from metta.cli.terminal_player import check_speed, play_in_terminal
from metta.errors import ConfigError, EnvError
from metta.loggers.number_text import shown_number

if TYPE_CHECKING:
    from metta.agent.policy import Policy
    from metta.agent.policy_record import PolicyRecord
    from metta.curriculum import Task
    from metta.replays.replay import Replay

__all__ = ["configure", "run"]

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_ENDINGS = (".mp4", ".gif", ".txt", ".replay")
_WITHOUT_PICTURES = (".txt", ".replay")
"""Files that can hold episodes of an environment that draws nothing."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Plays new episodes of a saved policy: in a window where there is a display and the environment "
        "has one, else in the terminal, or into a file."
    )
    parser.epilog = "metta enjoy first -o first.gif"
    parser.add_argument("policy", metavar="RUN|POLICY", help=POLICY_HELP)
    parser.add_argument("--env", metavar="ID", help="play here (default: the training task)")
    parser.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--greedy", action="store_true", help="take the likeliest actions instead of samples"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the episodes")
    parser.add_argument(
        "--max-steps",
        type=int,
        default=5000,
        metavar="N",
        help="end an episode in the terminal or a file here (default: %(default)s)",
    )
    parser.add_argument("--terminal", action="store_true", help="no window")
    add_out(parser, "write FILE.mp4, FILE.gif, FILE.txt or FILE.replay instead of showing it")
    parser.add_argument("--fps", type=float, metavar="N", help="steps per second of the file")
    parser.add_argument("--scale", type=int, metavar="N", help="pixels for each cell or pixel")
    add_terminal_play(parser)
    add_runs(parser, writes="file")


def run(options: argparse.Namespace) -> int:
    """Play."""
    target = _checked_target(options)
    from metta.envs.factory import make_vec_env  # torch loads here, not for --help
    from metta.store.policy_store import PolicyStore

    store = PolicyStore(options.runs)
    with store.hold(options.policy) as held:
        say_choice(options.policy, held.record, store)
        task = _task_of(held.record, options.env)
        vec_env = make_vec_env(task)
        vec_env.close()
        policy = held.load(vec_env).policy
    assert policy is not None, "load gives the policy"
    if target is None and not options.terminal and _opens_window(task):
        _play_in_window(policy, task, options)
        return 0
    _require_something_to_see(task, target)
    if target is not None:
        _write(target, _recorded(policy, task, options, options.seed), options)
        return 0
    for episode in range(options.episodes):
        replay = _recorded(policy, task, options, options.seed + episode)
        moments = range(replay.num_moments)
        play_in_terminal(replay, moments, speed=options.speed, color=not options.no_color)
    return 0


def _checked_target(options: argparse.Namespace) -> Path | None:
    """The file to write, if any; refuses bad options before any work."""
    check_speed(options.speed)
    for name in ("episodes", "max_steps"):
        if getattr(options, name) < 1:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(options, name)}; give 1 or more"
            )
    if options.out is None:
        return None
    target = written_file(options.out)
    if target.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{str(target)!r} must end in {', '.join(_ENDINGS)}; rename it")
    if options.episodes > 1:
        raise ConfigError(
            f"--episodes {options.episodes} with -o: a file holds one episode; leave --episodes out, and "
            "choose episodes with --seed"
        )
    return target


def _task_of(record: "PolicyRecord", env: str | None) -> "Task":
    from metta.curriculum import Task

    task = training_task(record) if env is None else Task(importable_env(env))
    if task is None:
        raise ConfigError(
            f"{record.uri!r} does not name its training task: no run around it has a config.yaml with "
            "the id of an environment; give --env ID"
        )
    return task


def _opens_window(task: "Task") -> bool:
    from metta.replays.capture import has_window

    has_display = sys.platform in ("darwin", "win32") or any(map(os.environ.get, _DISPLAYS))
    return has_display and has_window(task)


def _play_in_window(policy: "Policy", task: "Task", options: argparse.Namespace) -> None:
    """The environment shows itself; its own rate is the speed."""
    import contextlib
    import dataclasses

    from metta.envs.factory import make_vec_env
    from metta.sim.simulation import run_episodes

    kwargs = {**task.env_kwargs, "render_mode": "human"}
    with contextlib.closing(make_vec_env(dataclasses.replace(task, env_kwargs=kwargs))) as vec_env:
        scores = run_episodes(
            policy, vec_env, options.episodes, seed=options.seed, greedy=options.greedy
        )
    returns = ", ".join(shown_number(float(one)) for one in scores.returns)
    say(f"{task.name}: {len(scores.returns)} episodes, returns {returns}")


def _require_something_to_see(task: "Task", target: Path | None) -> None:
    from metta.replays.capture import kind_of

    if target is not None and target.suffix.lower() in _WITHOUT_PICTURES:
        return
    kind = kind_of(task)
    if kind == "observations":
        raise EnvError(
            f"{task.name!r} cannot be shown: it has neither the render mode rgb_array nor ansi, or drawing "
            "failed; -o FILE.txt writes its observations, actions and rewards"
        )
    if kind == "text" and target is not None:
        raise ConfigError(f"{task.name!r} draws text; write it as .txt, not {target.suffix}")


def _recorded(policy: "Policy", task: "Task", options: argparse.Namespace, seed: int) -> "Replay":
    from metta.replays.recording import record_episode

    return record_episode(
        policy, task, seed=seed, greedy=options.greedy, max_steps=options.max_steps
    )


def _write(target: Path, replay: "Replay", options: argparse.Namespace) -> None:
    from metta.replays.file import SUFFIX, save_replay
    from metta.replays.video import export_replay

    if target.suffix.lower() == SUFFIX:
        written = save_replay(target, replay)
    else:
        written = export_replay(replay, target, fps=options.fps, scale=options.scale)
    episode = f"{replay.info.num_steps:,} steps, return {shown_number(replay.info.mean_return)}"
    say(f"{written}: {episode}, {shown_bytes(written.stat().st_size)}")
