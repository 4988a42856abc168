"""An fp8 type that a GPU lacks is refused by name before any launch; which types that are is Triton's word."""

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend

from common.cases.batch import make_batch
from common.cases.named import CASES
from common.gpus import TABLE, resolve
from common.spec import AttentionShape, Features, SpecError, refusals
from common.spec.cache import CacheWrite
from common.spec.paged_batch import FP8
from common.spec.validation import validate, validate_output
from compilations import compilation

E4M3FN, FNUZ, E5M2 = FP8
TRITONS = {"fp8e4nv": E4M3FN, "fp8e4b8": FNUZ, "fp8e5": E5M2}
PAGES = AttentionShape(4, 2, 64, 16, torch.bfloat16, None, FNUZ)


def _batch(shape):
    return make_batch(((1, 20),), shape, fill=False)


@pytest.fixture
def on_sm_90(monkeypatch):
    monkeypatch.setattr(refusals, "target_of", lambda device: "sm_90")


@pytest.mark.parametrize("arch", sorted({gpu.arch for gpu in TABLE.values()}))
def test_the_types_of_an_arch_are_those_of_its_backend(arch):
    amd = arch.startswith("gfx")
    warp = next(gpu.warp_size for gpu in TABLE.values() if gpu.arch == arch)
    target = GPUTarget("hip", arch, warp) if amd else GPUTarget("cuda", int(arch[3:]), warp)
    named = make_backend(target).parse_options({}).supported_fp8_dtypes
    assert set(refusals.fp8_types(arch)) == {TRITONS[name] for name in named if name in TRITONS}


@pytest.mark.parametrize(
    ("shape", "argument"), [(PAGES, "key_cache"), (AttentionShape(4, 2, 64, 16, FNUZ), "query")], ids=["pages", "query"]
)
def test_pages_and_queries_of_a_type_that_the_gpu_lacks_are_refused(on_sm_90, shape, argument):
    with pytest.raises(SpecError, match=r"float8_e4m3fnuz on sm_90, allowed .*e4m3fn or .*e5m2 on sm_90") as refusal:
        validate(_batch(shape), Features(), values=False)
    assert refusal.value.argument == argument


@pytest.mark.parametrize("dtype", [E4M3FN, FNUZ], ids=str)
def test_an_output_is_refused_where_the_gpu_lacks_its_type(on_sm_90, dtype):
    batch = _batch(AttentionShape(4, 2, 64, 16, torch.bfloat16))
    out, features = torch.empty_like(batch.query, dtype=dtype), Features(out_scale=torch.ones(1))
    if dtype == E4M3FN:
        return validate_output(batch, out, features=features)
    with pytest.raises(SpecError) as refusal:
        validate_output(batch, out, features=features)
    assert refusal.value.argument == "out"


def test_pages_to_write_of_a_type_that_the_gpu_lacks_are_refused(on_sm_90):
    batch = _batch(PAGES)
    key, value = torch.ones(1, 2, 64, dtype=torch.bfloat16), torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    write = CacheWrite(key, value, batch.key_cache, batch.value_cache, torch.tensor([3]))
    with pytest.raises(SpecError) as refusal:
        write.check(quantised=True)
    assert refusal.value.argument == "key_cache"


def test_a_gpus_own_types_and_all_types_on_a_cpu_pass(on_sm_90, monkeypatch):
    for dtype in (E4M3FN, E5M2, torch.int8):
        refusals.expect_fp8(torch.empty(1, dtype=dtype), "key_cache")
    monkeypatch.undo()
    assert refusals.target_of(torch.device("cpu")) is None
    for dtype in FP8:
        refusals.expect_fp8(torch.empty(1, dtype=dtype), "key_cache")


def test_compiled_for_a_gpu_that_lacks_the_type_the_row_is_unsupported(compiled):
    (outcome,) = compiled(resolve("h200"), compilation("triton/q_block", ((1, 20),), PAGES))
    assert outcome.status == "unsupported" and "key_cache: found torch.float8_e4m3fnuz on sm_90" in outcome.reason


def test_a_case_names_its_arguments_of_fp8():
    named = {
        case.name: case.fp8 for case in CASES if case.name in ("fp8-query-fnuz", "fp8-out-fnuz", "int8", "batch-1")
    }
    assert named["fp8-query-fnuz"] == {"query": FNUZ, "key_cache": FNUZ}
    assert named["fp8-out-fnuz"]["out"] == FNUZ and named["int8"] == named["batch-1"] == {}


def test_the_first_argument_that_the_gpu_lacks_is_named():
    asked = {"query": E4M3FN, "key_cache": FNUZ, "out": FNUZ}
    assert refusals.refusal(asked, "sm_90").argument == "key_cache"
    assert refusals.refusal(asked, "sm_80").argument == "query"
    assert refusals.refusal(asked, "gfx942") is None and refusals.refusal(asked, None) is None
