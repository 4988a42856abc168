"""Bugs that no tidy batch shows die at smoke, each by a case of the axes; the same kernel without them passes."""

from kit_franken import SUPPORTS, Franken

from common.kit.fitting import fitted
from common.kit.inside import Asked
from common.kit.levels import level, read

MADE = [name for name in level("smoke") if name.startswith("axes-")]
# the case of the smoke level that rejects each, found once; every other case may as well
DIES_OF: dict[str, str] = {}


def asked(name):
    return Asked.of(fitted(read(name), SUPPORTS, {}))


def launcher(*bugs):
    kernel = Franken(*bugs)

    def launch(batch, f, out, lse):
        names = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
        options = {"sliding_window": f.sliding_window, "softcap": f.softcap, "sinks": f.sinks}
        options |= {"alibi_slopes": f.alibi_slopes, "query_scale": f.query_scale}
        options |= {"key_scale": f.key_scale, "value_scale": f.value_scale}
        kernel(*(getattr(batch, n) for n in names), softmax_scale=batch.softmax_scale, out=out, lse=lse, **options)

    return launch
