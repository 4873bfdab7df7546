"""Builds the C kernels; everything else about the project stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
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
            depends=["metta/envs/grid/_rules.h", "metta/envs/grid/_world.h"],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
    ]
)
