"""triton 3.8.0 to 3.9.0 for sm_90: spills 0 to 20

`python triton_3_9_0_sm_spills.py` prints what the installed Triton makes of it; the GPU need not be there.
Of triton/static_grid 65167061601c, _attend_items_kernel. Seen:
{"triton": "3.8.0", "source": "triton_3_9_0_sm_spills.0.ttir", "registers": 255, "spills": 0, "shared": 73728, "loads": {"LDG.E": 8, "LDG.E.128": 2, "LDGSTS.E.BYPASS.128": 64, "LDGDEPBAR": 4}, "matrix": {"HMMA.16816.F32.BF16": 64}}
{"triton": "3.9.0", "source": "triton_3_9_0_sm_spills.0.ttir", "registers": 255, "spills": 20, "shared": 73728, "loads": {"LDG.E": 8, "LDG.E.128": 2, "LDGSTS.E.BYPASS.128": 64, "LDGDEPBAR": 4}, "matrix": {"HMMA.16816.F32.BF16": 64}}
"""
import collections, json, pathlib, re, subprocess, tempfile

import triton
from triton.backends.compiler import GPUTarget

TARGET, OPTIONS = GPUTarget('cuda', 90, 32), {'num_warps': 4, 'num_stages': 2, 'num_ctas': 1}
for name in ('triton_3_9_0_sm_spills.0.ttir',):
    found = {"triton": triton.__version__, "source": name}
    try:
        made = triton.compile(str(pathlib.Path(__file__).with_name(name)), target=TARGET, options=OPTIONS)
        if "amdgcn" in made.asm:
            text = made.asm["amdgcn"]
            found["registers"], found["spills"] = (
                int(re.search(rf"\.vgpr_{what}:\s+(\d+)", text)[1]) for what in ("count", "spill_count"))
        else:
            tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(made.asm["cubin"])
                file.flush()
                text = subprocess.check_output([tool, "--dump-resource-usage", "-sass", file.name], text=True)
            found["registers"] = int(re.search(r"REG:(\d+)", text)[1])
            found["spills"] = len(re.findall(r"\bSTL\b", text))
        found["shared"] = made.metadata.shared
        opcodes = {"loads": "(?:global|buffer)_load|LDG|UTMALDG", "matrix": "v_s?mfma|HG?MMA|UTCHMMA"}
        for what, names in opcodes.items():
            found[what] = collections.Counter(re.findall(rf"\b(?:{names})[\w.]*", text))
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(found))
