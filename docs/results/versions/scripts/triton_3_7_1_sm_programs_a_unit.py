"""triton 3.6.0 to 3.7.1 for sm_90: programs a unit 32 to 20

`python triton_3_7_1_sm_programs_a_unit.py` prints what the installed Triton makes of it; the GPU need not be there.
Of triton/native.sm90_prefill bc42ee9248e5, _reduce_segments_kernel. Seen:
{"triton": "3.6.0", "source": "triton_3_7_1_sm_programs_a_unit.0.ttir", "registers": 32, "spills": 1, "shared": 1024, "loads": {"LDG.E": 16, "LDG.E.128": 8}, "matrix": {}}
{"triton": "3.7.1", "source": "triton_3_7_1_sm_programs_a_unit.0.ttir", "registers": 44, "spills": 0, "shared": 1024, "loads": {"LDG.E": 16, "LDG.E.128": 8}, "matrix": {}}
"""
import collections, json, pathlib, re, subprocess, tempfile

import triton
from triton.backends.compiler import GPUTarget

TARGET, OPTIONS = GPUTarget('cuda', 90, 32), {'num_warps': 2, 'num_stages': 3, 'num_ctas': 1}
for name in ('triton_3_7_1_sm_programs_a_unit.0.ttir',):
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
