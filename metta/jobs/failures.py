"""How jobs fail: for good, or so that another attempt is worth it."""

from metta.errors import ConfigError, MissingExtraError, PolicyError, SpaceError, UnsafeFileError

__all__ = ["JobFailedError", "JobLostError", "UnfitWorkerError", "is_final", "shown_error"]

_FINAL = (ConfigError, MissingExtraError, PolicyError, SpaceError, UnsafeFileError)
"""Errors of what was asked for: another attempt would meet them as well."""


class JobLostError(Exception):
    """The job was cancelled, or another worker has it: what is being done is not wanted any more."""


class UnfitWorkerError(Exception):
    """This worker may not do the job; another one may."""


class JobFailedError(Exception):
    """A job failed in a process of its own; the text names the error there."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


def is_final(error: Exception) -> bool:
    """Whether another attempt would fail in the same way."""
    return isinstance(error, _FINAL) or (isinstance(error, JobFailedError) and error.is_final)


def shown_error(error: Exception) -> str:
    """The kind of an error, and its text."""
    return str(error) if isinstance(error, JobFailedError) else f"{type(error).__name__}: {error}"
