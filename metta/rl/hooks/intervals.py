"""When something that happens every so often is due."""

__all__ = ["crossed"]


def crossed(previous: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in ``(previous, now]``; 0: never.

    Counters may jump over the multiple itself.
    """
    return interval > 0 and now // interval > previous // interval
