"""What Helion generates beside ours: rows become pairs; a real kernel of each DSL is compiled and its source kept."""

from compare.studies import generated


def row(kernel, workload="32q1s2k", status="ok", **more):
    facts = {"registers": 100, "spills": 1, "shared_bytes": 64, "instructions": 10, "loads": {"128": 4}, "matrix": {}}
    return {"kernel": kernel, "workload": workload, "status": status} | (facts | more if status == "ok" else more)


def test_a_pair_sums_a_launchs_kernels_and_keeps_the_worst():
    parts = [row("triton/q_block"), row("triton/q_block", registers=200, matrix={"HMMA 16816": 8})]
    (pair,) = generated.pairs([*parts, row("helion/q_block", generated_tokens=3000)])
    assert (pair["triton_kernels"], pair["triton_registers"], pair["triton_spills"]) == (2, 200, 2)
    assert pair["triton_matrix"] == "none; 8 x HMMA 16816" and pair["helion_loads"] == "4 x 128"
    assert pair["generated_tokens"] == 3000 and pair["helion_tokens"] > 1000


def test_a_side_that_failed_has_its_reason_and_no_figures():
    failed = row("helion/q_block", status="compile_error", reason="PdlPlacement: no")
    (pair,) = generated.pairs([row("triton/q_block"), failed])
    assert pair["helion_failed"] == "PdlPlacement: no" and "helion_registers" not in pair
