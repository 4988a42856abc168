"""The metamorphic relations on the Q Block kernels of both DSLs, interpreted: a small batch each."""

import os

import pytest

from common.relations.numbers import RELATIONS
from common.relations.relation import Precondition, broken
from common.spec.kernel import asked_of
from compare.competitors import registry
from relation_batches import (
    CAPPED,
    CHUNKED,
    DECODES,
    FULL,
    MIXED,
    QUANTISED,
    SHARED,
    SUNK,
    WINDOW,
    interpreted,
    problem,
)

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: tests/gpu runs the relations on it", allow_module_level=True)

# A batch that each relation speaks of. Rows and columns of a product land elsewhere in numpy's matrix product, whose
# bits depend on the place: those are held to tolerance by their kind.
ELSEWHERE = {
    "keys-left-of-the-window": WINDOW, "unseen-slots-poisoned": WINDOW, "pages-private": SHARED, "keys-twice": DECODES,
    "keys-in-2-parts-merged": SUNK, "keys-in-3-parts-merged": FULL, "hints-wrong": CAPPED,
    "span-of-everything": FULL, "cross-as-non-causal": FULL, "chunks-as-sequences": CHUNKED,
    **dict.fromkeys(
        ("scales-of-one", "value-scale-doubled", "key-scale-as-softmax-scale", "caches-of-floats"), QUANTISED
    ),
}  # fmt: skip
# Helion traces a kernel for each head, page, feature and rank of K: these need no second trace of one batch.
HELION_DAILY = {
    "twice", "pages-permuted", "pages-moved", "table-widened", "requests-appended", "sequences-reversed",
    "prefill-in-pages", "values-times-8", "query-and-keys-negated", "values-split", "keys-of-the-future",
    "nan-stays-where-it-is-seen",
}  # fmt: skip
NAMES = {relation.name for relation in RELATIONS}
assert HELION_DAILY | set(ELSEWHERE) <= NAMES


def _cells():
    for kernel_id in ("triton/q_block", "helion/q_block"):
        for relation in RELATIONS:
            daily = kernel_id.startswith("triton") or relation.name in HELION_DAILY
            marks = [] if daily else [pytest.mark.slow]
            yield pytest.param(kernel_id, relation, marks=marks, id=f"{kernel_id}-{relation.name}")


@pytest.mark.parametrize(("kernel_id", "relation"), list(_cells()))
def test_a_relation_holds(kernel_id, relation):
    kernel = registry.load(kernel_id)
    batch, features = problem(ELSEWHERE.get(relation.name, MIXED))
    parts = relation.parts(relation.prepare(batch) if relation.prepare else batch, features)
    asked = frozenset().union(asked_of(batch, features), *(asked_of(part.batch, part.features) for part in parts))
    if missing := asked - kernel.SUPPORTS:
        pytest.skip(f"{kernel_id} does not support {', '.join(sorted(missing))}")
    assert broken(relation, interpreted(kernel), batch, features, kernel.CONTRACT) == ""


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_the_batch_is_one_that_the_relation_speaks_of(relation):
    batch, features = problem(ELSEWHERE.get(relation.name, MIXED))
    try:
        batch = relation.prepare(batch) if relation.prepare else batch
        assert relation.parts(batch, features)
    except Precondition as why:
        pytest.fail(str(why))
