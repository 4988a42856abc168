"""Wrong kernels that the checker must reject: each is the emulation with one edit.

Most of them are mistakes that some paged-attention kernel has shipped with. Those with a scope are right everywhere but
in one sequence, in one head, or past 2,048 keys, where one tolerance for all rows does not see them.

In: a batch. Out: what a kernel with one mistake would have written. MUTANTS has all of them.
"""

from __future__ import annotations

from common.mutants.biased import BIASED
from common.mutants.features import FEATURES
from common.mutants.keys import KEYS
from common.mutants.known import KNOWN
from common.mutants.mutant import Mutant
from common.mutants.numbers import MATH

MUTANTS: tuple[Mutant, ...] = (*KEYS, *MATH, *KNOWN, *FEATURES, *BIASED)
