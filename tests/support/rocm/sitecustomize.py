"""A machine with an MI300X, as Python sees one: torch's ROCm build, its driver and its tools, without any of them.

A process that finds this folder in PYTHONPATH imports this file before anything else, and so do its children. What it
changes it changes when a module has been imported; the project's code is as it is. What a process asks of NVIDIA that
an AMD machine has not is refused as it would be there, and noted in the file that WALK_LOG names.

WALK_GRAPHS=refused: no stream can be captured. WALK_TOOLS: a folder of programs beside those of the machine.
"""

import functools
import importlib.abc
import sys

import rocm_project
import rocm_torch
import rocm_triton

AFTER = rocm_torch.AFTER | rocm_triton.AFTER | rocm_project.AFTER


class Afterwards(importlib.abc.MetaPathFinder):
    """Finds a module where the others do, and changes it once it has been run; NVIDIA's packages are not there."""

    def find_spec(self, name, path=None, target=None):
        if name in rocm_project.ABSENT:
            rocm_project.note(f"import {name}")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in AFTER:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None:
            spec.loader.exec_module = functools.partial(self.run, spec.loader.exec_module, AFTER[name])
        return spec

    def run(self, exec_module, change, module):
        exec_module(module)
        change(module)


sys.meta_path.insert(0, Afterwards())
rocm_project.begin()
