"""A family with fewer configs, for a process that compiles all that its batches may ask for.

In: a family, a shape, a GPU, the limits of the batches. Out: the family, its ranking without the configs that these
batches can spare. What was found is kept on the disk (DIPTYCH_CACHE), so that a second start ranks nothing.
"""

import hashlib
import json
import warnings
from dataclasses import astuple
from functools import cache
from pathlib import Path

from common.choice.learned import Candidate
from common.gpus import Gpu
from common.serving import winners
from common.serving.choice import Family
from common.serving.grid import decided_by, reachable_stats
from common.serving.whole import put_sealed, read_sealed
from common.spec import AttentionShape, Features
from common.spec.kernel import asked_of_shape
from common.spec.metadata import BatchStats

Found = tuple[list[int], dict[BatchStats, Candidate | None]]  # rows of the ranking, and the best of each batch
_families: dict[tuple, Family] = {}


def lean(
    family: Family,
    shape: AttentionShape,
    gpu: Gpu | None,
    limits: tuple[int, int, int],
    features: Features,
    slack: float,
) -> Family:
    """`family` without the configs that its batches can spare (`Learned.few`); itself where it ranks none.

    limits: tokens, sequences, keys of these batches. slack: the share of its predicted time that a batch may lose.
    """
    needs, sees = features.names() | asked_of_shape(shape), features.sees
    known = family.learned(gpu) if slack and gpu is not None and "batch_invariant" not in needs else None
    if known is None:
        return family
    question = family.question(shape, gpu, needs, sees)
    key = (family.name, known.digest, question, limits, slack)
    if key not in _families:
        path, many = _path((*key, _sources(family.folder))), list(reachable_stats(*limits))
        kept = _read(path)
        found = kept or known.few(question, [decided_by(one, sees) for one in many], slack)
        if not kept:
            _keep(path, *found)
        rows, firsts = found
        ranked = {(question, stats): first for stats, first in firsts.items()}
        _families[key] = family.ranked_by(gpu, known.only(rows), ranked)
        _families[key].rank(shape, many, gpu, needs, sees)  # all are; a family of two lets the other know
    return _families[key]


def _path(said: tuple) -> Path | None:
    """Where what follows from all of `said` is kept; None where nothing is."""
    folder = winners.folder()
    return folder and folder.parent / "lean" / f"{hashlib.sha256(repr(said).encode()).hexdigest()[:32]}.json"


@cache
def _sources(folder: Path | None) -> str:
    """The hash of what ranks, and of a family's own files."""
    here = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for root in filter(None, (here / "choice", here / "serving", folder)):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _read(path: Path | None) -> Found | None:
    """What `_keep` wrote; None where there is nothing, or with a warning what cannot be trusted."""
    try:
        rows, firsts = json.loads(read_sealed(path)) if path else (None, ())
        return path and (rows, {BatchStats(*stats): first and Candidate(*first) for stats, first in firsts})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        return _warn(f"ignored {path}: {error}")


def _keep(path: Path | None, rows: list[int], firsts: dict[BatchStats, Candidate | None]) -> None:
    plain = [[astuple(stats), first and astuple(first)] for stats, first in firsts.items()]
    try:
        if path:
            put_sealed(path, json.dumps([rows, plain], separators=(",", ":")))
    except OSError as error:
        _warn(f"{path} cannot be written: {error.strerror or error}")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
