"""Print what the installed Triton makes of a case in which one release made worse code than the release before.

`python again.py triton_3_7_1_gfx_spills`; without a name, list the cases. The GPU need not be there. cases.json says of
each what got worse, of which kernel, for which target, and what both releases made (`seen`).
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CASES = json.loads((HERE / "cases.json").read_text())
OPCODES = {"loads": "(?:global|buffer)_load|LDG|UTMALDG", "matrix": "v_s?mfma|HG?MMA|UTCHMMA"}


def assembly(made, triton):
    """(text, registers, spills) of compiled code, of AMD as it is, of NVIDIA disassembled."""
    if "amdgcn" in made.asm:
        text = made.asm["amdgcn"]
        return text, *(int(re.search(rf"\.vgpr_{what}:\s+(\d+)", text)[1]) for what in ("count", "spill_count"))
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = subprocess.check_output([tool, "--dump-resource-usage", "-sass", file.name], text=True)
    return text, int(re.search(r"REG:(\d+)", text)[1]), len(re.findall(r"\bSTL\b", text))


def compiled(source, case):
    """What is printed of one TTIR file."""
    import triton
    from triton.backends.compiler import GPUTarget

    found = {"triton": triton.__version__, "source": source}
    try:
        made = triton.compile(str(HERE / source), target=GPUTarget(*case["target"]), options=case["options"])
        text, found["registers"], found["spills"] = assembly(made, triton)
        found["shared"] = made.metadata.shared
        for what, names in OPCODES.items():
            found[what] = collections.Counter(re.findall(rf"\b(?:{names})[\w.]*", text))
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for source in CASES[name]["sources"]:
            print(json.dumps(compiled(source, CASES[name])))
    if not sys.argv[1:]:
        print("\n".join(f"{name}: {case['what']}" for name, case in CASES.items()))
