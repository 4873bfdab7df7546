"""metta's errors. Each message says what was asked, what was found and what to change."""

from collections.abc import Iterable

__all__ = [
    "ActorError",
    "CheckpointError",
    "ConfigError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DriverError",
    "EnvError",
    "EventLogError",
    "HookError",
    "RankError",
    "RankGoneError",
    "InexactResumeError",
    "MettaError",
    "MettaWarning",
    "MissingExtraError",
    "NonFiniteError",
    "PolicyError",
    "RolloutError",
    "RunLockedError",
    "RunRemovedError",
    "SpaceError",
    "StateError",
    "SweepError",
    "UnsafeFileError",
    "did_you_mean",
]


class MettaError(Exception):
    """Base of every error that metta raises on purpose."""


class ConfigError(MettaError):
    """A setting is unknown, out of range, or does not fit the other settings."""


class SpaceError(MettaError):
    """An observation or action space is not supported, or does not fit the policy."""


class EnvError(MettaError):
    """An environment failed, died, hung, or returned something it must not return."""


class PolicyError(MettaError):
    """A policy module does not fit the spaces, or returned something unusable."""


class ActorError(PolicyError):
    """A fast actor cannot be derived from this policy."""


class DriverError(MettaError):
    """An update cannot be compiled, or its compiled form does not agree with the eager one."""


class RolloutError(MettaError):
    """Rollout data is incomplete, inconsistent, or does not fit the policy."""


class NonFiniteError(MettaError):
    """NaN or infinity where training needs a number."""


class StateError(MettaError):
    """Saved state does not fit the object that should take it."""


class CheckpointError(MettaError):
    """A checkpoint is missing, incomplete, or cannot be written."""


class InexactResumeError(ConfigError):
    """A run would continue under conditions that change its last bits; names every difference."""


class UnsafeFileError(MettaError):
    """A file holds code, or more than its reader accepts; nothing of it was used."""


class RunLockedError(MettaError):
    """Another trainer is using this run directory."""


class RunRemovedError(MettaError):
    """The folder of a run was removed while a trainer was using it."""


class EventLogError(MettaError):
    """An event log has a line that is not an event, or belongs to another run; names the file."""


class DatabaseError(MettaError):
    """A statistics database cannot be used as asked, or does not fit what should go into it."""


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached, or is locked; trying again later may work."""


class RankError(MettaError):
    """A rank of a run in several processes failed, is gone, or differs from the others; names it."""


class RankGoneError(RankError):
    """A rank of a run was killed, stopped, or cannot be reached; ranks that start again may go on."""

    exit_code = 75
    """Of a process that ends because another one is gone."""


class SweepError(MettaError):
    """A sweep cannot go on: its trials fail one after the other, or another process is at work on it."""


class HookError(MettaError):
    """A hook failed, or cannot be registered; names the hook, the event and the step."""


class MissingExtraError(MettaError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'metta-rl[{extra}]'"
        )
        self._made_of = package, extra, purpose

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str, str]]:
        return type(self), self._made_of


class MettaWarning(UserWarning):
    """Something that is allowed but probably not intended."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint naming the closest known spelling, or an empty string."""
    import difflib  # seldom needed, and slow to import

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
