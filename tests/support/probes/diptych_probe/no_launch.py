"""A kernel that launches nothing of Triton's: the reference in torch, so that there is no code to execute."""

from diptych_probe.triton_product import Config

from common.oracle.reference import reference
from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal"})
CONTRACT = Precision()
DEFAULT = Config()


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse=None):
    live = int(batch.query_start_loc[-1])
    out[:live] = reference(batch, features).out[:live].to(out.dtype)
