"""cuDNN's attention on K and V that are contiguous already: a bound, not a competitor, as baseline/sdpa_dense is."""

from common.spec.kernel import Precision, launches
from compare.competitors.baselines import cudnn, sdpa, sdpa_dense

NAME = "baseline/cudnn_dense"
SUPPORTS = sdpa.SUPPORTS
CONTRACT = Precision()
DEFAULT = None
workspace, prepare = sdpa_dense.workspace, sdpa_dense.prepare


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Attention alone, by cuDNN, over what `prepare` left."""
    ready = workspace or prepare(batch, features, config, None)
    cudnn.only(cudnn.BACKEND, NAME, lambda: sdpa.attend(batch, features, out, ready.plan, ready.dense))
