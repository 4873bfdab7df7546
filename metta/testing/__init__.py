"""Tools to test set-ups built on metta: faulty environments, digests to compare, certificates."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.testing.certification import Certificate, certify
    from metta.testing.digests import (
        DigestHook,
        compare_digests,
        first_difference,
        read_digests,
    )
    from metta.testing.fault_env import FaultEnv, InjectedFaultError

__all__ = [
    "Certificate",
    "DigestHook",
    "FaultEnv",
    "InjectedFaultError",
    "certify",
    "compare_digests",
    "first_difference",
    "read_digests",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Certificate": "metta.testing.certification",
        "DigestHook": "metta.testing.digests",
        "FaultEnv": "metta.testing.fault_env",
        "InjectedFaultError": "metta.testing.fault_env",
        "certify": "metta.testing.certification",
        "compare_digests": "metta.testing.digests",
        "first_difference": "metta.testing.digests",
        "read_digests": "metta.testing.digests",
    },
)
