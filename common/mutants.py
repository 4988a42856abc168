"""Wrong kernels that the checker must reject: each is the emulation with one edit.

Most of them are mistakes that some paged-attention kernel has shipped with. Those with a scope are right everywhere but
in one sequence, in one head, or past 2,048 keys, where one tolerance for all rows does not see them.
"""

from __future__ import annotations

from common.mutant_cases import Mutant
from common.mutants_features import FEATURES
from common.mutants_keys import KEYS
from common.mutants_known import KNOWN
from common.mutants_math import MATH

MUTANTS: tuple[Mutant, ...] = (*KEYS, *MATH, *KNOWN, *FEATURES)
