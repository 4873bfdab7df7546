"""Builds the C kernels; everything else about the project stands in pyproject.toml."""

from setuptools import Extension, setup

SHARED = ["metta/envs/_arrays.h", "metta/envs/_fused.h", "metta/envs/_fused_actor.h"]

setup(
    ext_modules=[
        Extension(
            "metta.agent._native",
            sources=["metta/agent/_native.c"],
            depends=["metta/agent/_network.h", *SHARED],
            # a fused multiply-add is welcome here: actors are compared with the policy, not with a twin
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        ),
        Extension(
            "metta.ops._native",
            sources=["metta/ops/_native.c"],
            # no fused multiply-add: the C and the NumPy kernels round alike
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "metta.envs.grid._native",
            sources=["metta/envs/grid/_native.c"],
            depends=["metta/envs/grid/_rules.h", "metta/envs/grid/_world.h", *SHARED],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "metta.envs.cartpole._native",
            sources=["metta/envs/cartpole/_native.c"],
            depends=SHARED,
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
    ]
)
