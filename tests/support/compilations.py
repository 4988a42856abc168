"""A launch to compile, said in one line."""

from typing import Any

from common.cases.ask import PLAIN, Ask
from common.cases.batch import Lens
from common.spec import AttentionShape
from compare.static.compile import Compilation
from compare.workloads import Workload


def compilation(
    kernel: str,
    lens: Lens,
    shape: AttentionShape,
    config: dict[str, Any] | None = None,
    *,
    ask: Ask = PLAIN,
    style: str = "nhd",
    new_kv: bool = False,
    **how: Any,
) -> Compilation:
    """Of a row without a name; how: what else a Compilation has."""
    return Compilation(Workload("", tuple(lens), shape, ask, style, new_kv=new_kv), kernel, config, **how)
