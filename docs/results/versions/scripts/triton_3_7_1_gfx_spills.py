"""triton 3.6.0 to 3.7.1 for gfx950: spills 181 to 295

`python triton_3_7_1_gfx_spills.py` prints what the installed Triton makes of it; the GPU need not be there.
Of triton/q_block 81bc2d471393, _q_block_kernel. Seen:
{"triton": "3.6.0", "source": "triton_3_7_1_gfx_spills.0.ttir", "registers": 256, "spills": 181, "shared": 65536, "loads": {"buffer_load_dwordx4": 49, "buffer_load_dword": 4}, "matrix": {"v_mfma_f32_32x32x16_bf16": 128}}
{"triton": "3.7.1", "source": "triton_3_7_1_gfx_spills.0.ttir", "registers": 256, "spills": 295, "shared": 65536, "loads": {"buffer_load_dwordx4": 49, "buffer_load_dword": 4}, "matrix": {"v_mfma_f32_32x32x16_bf16": 128}}
"""
import collections, json, pathlib, re, subprocess, tempfile

import triton
from triton.backends.compiler import GPUTarget

TARGET, OPTIONS = GPUTarget('hip', 'gfx950', 64), {'num_warps': 4, 'num_stages': 1, 'num_ctas': 1, 'waves_per_eu': 2, 'matrix_instr_nonkdim': 0, 'kpack': 1}
for name in ('triton_3_7_1_gfx_spills.0.ttir',):
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
