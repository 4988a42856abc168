"""Write goldens anew: `python tests/goldens/write.py NAME...`; without a name it says which there are.

Only in a step that says what it changes and why: the goldens are there for moves, which change none of them.
"""

import os
import sys
import time
from pathlib import Path


def main(names: list[str]) -> None:
    from common import interpreter
    from goldens import code, plans, table

    interpreter.install()
    known = {"plans": plans, "code": code}
    if not names or not set(names) <= set(known):
        sys.exit(f"found {' '.join(names) or 'nothing'}, allowed names of {', '.join(known)}")
    for name in names:
        begin = time.perf_counter()
        table.write(name, known[name].rows())
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}  # before anything imports torch
    tests = Path(__file__).parents[1]
    sys.path[:1] = [str(tests.parent), str(tests), str(tests / "support")]
    main(sys.argv[1:])
