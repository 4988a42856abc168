"""The head and the last section of a report: what ran where, and how to read it under its timing contract."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.runs import RunData
from compare.report.verdicts import floor


def header(run: RunData) -> list[tuple[str, str]]:
    """(name, value) of what ran, where, and with which versions; without empty values."""
    manifest = run.manifest
    versions = manifest.get("versions") or (run.records[0].versions if run.records else {})
    commit = str(manifest.get("commit", ""))
    done = len(run.records)
    covered = f"{done} of {manifest.get('planned', done)} planned cells finished, {len(run.ok)} ok"
    noise = floor(run.folder, run.gpu, run.contract)[1] if run.timed else ""
    sources = sorted({f"`{r.kernel}` {r.source_sha}" for r in run.records if r.source_sha})
    pairs = [
        ("run", manifest.get("run_id", "")),
        ("command", f"`{manifest['command']}`" if manifest.get("command") else ""),
        ("GPU", "" if not manifest.get("gpu") else run.gpu_title + (" (absent)" if run.absent else "")),
        ("suite", manifest.get("suite", "")),
        ("timing contract", run.contract if run.timed else ""),
        ("noise floor", noise),
        ("coverage", covered if done or manifest.get("planned") else ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", commit + (" with local changes" if manifest.get("dirty") else "")),
        ("machine", ", ".join(f"{name} {value}" for name, value in (manifest.get("machine") or {}).items())),
        ("started", manifest.get("started", "")),
        ("took", f"{manifest['seconds']:.0f} s" if manifest.get("seconds") else ""),
        ("kernel sources", ", ".join(sources)),
    ]
    return [(name, str(value)) for name, value in pairs if value]


def guide(run: RunData) -> Iterator[str]:
    """What a reader must know, by what this run did."""
    yield "A row has a time only where the very output of the timed callable passed the checker."
    if run.timed:
        yield from _times(run)
    else:
        yield "Nothing was timed, so nothing here says which kernel is faster."
        yield "`check`: the largest error over its budget that the checker saw; above 1 it rejects."
    if run.absent:
        yield (
            "Compiled for the named GPU and checked on the CPU: interpreted cells ran the algorithm, executed ones the"
            " compiled code in a model of the ISA. No claim about its speed, its races or its hardware follows."
        )
    if any(fact.get("executed") for record in run.records for fact in record.facts):
        yield (
            "Counts of executed code, over a kernel's cells: matrix FLOPs over those of the visible scores; bytes that"
            " come 16 a lane; loads that a wait leaves in flight; LDS clocks over the fewest that as many words take;"
            " lines that all L2s fetch over distinct ones. docs/results/mi300/counts.md has those of others' kernels."
        )
    if any(record.estimate for record in run.records):
        yield (
            "`bound .. estimate × spread`: microseconds of a model, no measurement. First what the GPU's stated peaks"
            " allow at best, then what the model says; the brackets hold four in five of the ratios of measured to"
            " estimated times on its vendor's page, docs/results/mi300/estimates.md or docs/results/h200/estimates.md."
        )
    if run.facts:
        yield (
            "Static facts count the whole text of a kernel, the copies that pipelining peels off included; `spills` are"
            " registers (AMD) or store instructions (NVIDIA) that went to memory."
        )
    yield "What each DSL costs beside its speed: docs/choosing-a-dsl.md; what each kernel can do: docs/capability.md."


def _times(run: RunData) -> Iterator[str]:
    contract = (run.manifest.get("contract") or {}).get("line", run.contract)
    if contract:
        told = contract.removesuffix("; docs/measuring.md")
        yield f"The timing contract is {told}. Times of another are never compared with these."
    yield "Spread is (p95 - p05) / median. What a timer, a cache and `noisy` mean: docs/measuring.md."
    yield (
        "`of floor`: the larger of bytes over stated HBM bandwidth and FLOPs over the stated dense peak, divided by the"
        " time. Nobody reaches 100%; it says what is left, not what is attainable."
    )
    yield "`to best`: the time over the row's best time; `× FA3`: FA3's time over the kernel's (above 1× is faster)."
    yield "Kernels marked (bound) solve an easier problem (no paging): they are drawn and listed, and never rank."
    yield "Host planning and launch cost are not in these times, except where the timer launches eagerly."
