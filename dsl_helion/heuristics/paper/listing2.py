"""The paper's Listing 2 for this folder's kernels (common/serving/listing2.py)."""

from common.serving.listing2 import Listing2
from dsl_helion import adjustable_tile as adjustable_tile_kernel
from dsl_helion import parallel_softmax as parallel_softmax_kernel
from dsl_helion import q_block as q_block_kernel

RULES = Listing2(q_block_kernel, parallel_softmax_kernel, adjustable_tile_kernel)
auto, q_block = RULES.auto, RULES.q_block
parallel_softmax, adjustable_tile = RULES.parallel_softmax, RULES.adjustable_tile
