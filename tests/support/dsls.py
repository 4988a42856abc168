"""The two DSLs, for tests that hold of both: their modules by name, and what is said of one of them alone."""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

DSLS = ("triton", "helion")
in_triton = pytest.mark.parametrize("dsl", ["triton"], indirect=True)
in_helion = pytest.mark.parametrize("dsl", ["helion"], indirect=True)
HELION_SLOWLY = ("triton", pytest.param("helion", marks=pytest.mark.slow))  # values of a test without the fixture


@dataclass(frozen=True)
class Dsl:
    """name: triton or helion."""

    name: str

    def module(self, path: str) -> ModuleType:
        """A module of the DSL's folder: `split`, `heuristics.generic.default`."""
        return importlib.import_module(f"dsl_{self.name}.{path}")

    def fits(self, part: Any, shape: Any, gpu: Any) -> bool:
        """What its binding says of a config, or of a part of one, that has block_m."""
        binding = self.module("binding")
        if self.name == "triton":
            return binding.fits(part.block_m, part.tile_size, part.num_warps, part.num_stages, shape, gpu)
        return binding.fits(part, shape, gpu)


def slow_in_helion(value: Any, **options: Any) -> Any:
    """A parameter whose tests are slow in Helion, which generates code for it, and of every day in Triton."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow_in_helion, **options)
