"""Wrong kernels that the checker must reject. Each is the emulation with one edit.

Most repeat a mistake that some paged-attention kernel shipped with. A mutant with a scope is wrong only in one
sequence, in one head, or past 2,048 keys; a checker with one tolerance for all rows would not see it.

In: a batch. Out: what a kernel with that mistake would write. MUTANTS lists all of them.
"""

from common.mutants.biased import BIASED
from common.mutants.features import FEATURES
from common.mutants.keys import KEYS
from common.mutants.known import KNOWN
from common.mutants.mutant import Mutant
from common.mutants.numbers import MATH

MUTANTS: tuple[Mutant, ...] = KEYS + MATH + KNOWN + FEATURES + BIASED
