"""For tests of set-ups built on metta: misbehaving environments, processes to kill, digests to compare."""

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
    from metta.testing.zygote import Child, Zygote

__all__ = [
    "Certificate",
    "Child",
    "DigestHook",
    "FaultEnv",
    "InjectedFaultError",
    "Zygote",
    "certify",
    "compare_digests",
    "first_difference",
    "read_digests",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Certificate": "metta.testing.certification",
        "Child": "metta.testing.zygote",
        "DigestHook": "metta.testing.digests",
        "FaultEnv": "metta.testing.fault_env",
        "InjectedFaultError": "metta.testing.fault_env",
        "Zygote": "metta.testing.zygote",
        "certify": "metta.testing.certification",
        "compare_digests": "metta.testing.digests",
        "first_difference": "metta.testing.digests",
        "read_digests": "metta.testing.digests",
    },
)
