"""torch's scaled_dot_product_attention on K and V that are contiguous already: a bound, not a competitor.

The gather of baseline/sdpa happens in `prepare`, outside the timed call. No paged cache offers this; the figure says
what paging costs.
"""

from dataclasses import dataclass

from common.spec import Features, PagedBatch
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import sdpa

SUPPORTS = sdpa.SUPPORTS
CONTRACT = Precision()
DEFAULT = None
workspace = sdpa.workspace


@dataclass(frozen=True)
class Workspace:
    """The lengths and the contiguous K and V of one batch."""

    plan: sdpa.Plan
    dense: sdpa.Dense


def prepare(batch: PagedBatch, features: Features, config: None, workspace: Workspace | None) -> Workspace:
    """K and V out of their pages; given a workspace, into the same buffers."""
    plan = workspace.plan if workspace else sdpa.make_plan(batch, features)
    fresh = [tuple(x.contiguous() for x in pair) for pair in sdpa.gather(batch, plan)]
    if workspace is None:
        return Workspace(plan, fresh)
    for kept, new in zip(workspace.dense, fresh, strict=True):
        for old, value in zip(kept, new, strict=True):
            old.copy_(value)
    return workspace


@launches("baseline/sdpa_dense", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Attention alone, over what `prepare` left."""
    ready = workspace or prepare(batch, features, config, None)
    sdpa.attend(batch, features, out, ready.plan, ready.dense)
