"""Everything in this folder needs a GPU: marked `gpu`, skipped where there is none.

With `-n 14 --dist loadgroup` a process has the cells of one kernel and dtype (tests/support/process_groups.py): Helion
generates code for seconds a specialisation and keeps it in the process.
"""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no GPU here"))
