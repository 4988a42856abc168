"""The head and the last section of a report: what ran where, and how to read it under its timing contract."""

from pathlib import Path

from compare.analysis.runs import RunData


def header(run: RunData) -> list[tuple[str, str]]:
    """(name, value) of what ran, where, and with which versions; without empty values."""
    manifest = run.manifest
    versions = manifest.get("versions") or (run.records[0].versions if run.records else {})
    commit = str(manifest.get("commit", ""))
    done = len(run.records)
    covered = f"{done} of {manifest.get('planned', done)} planned cells finished, {len(run.ok)} ok"
    noise = run.floor[1] if run.timed else ""
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


def guide(run: RunData) -> list[str]:
    """What a reader must know, by what this run did: templates/guide.j2, one sentence or more a line."""
    import jinja2

    contract = (run.manifest.get("contract") or {}).get("line", run.contract)
    executed = any(fact.get("executed") for record in run.records for fact in record.facts)
    values = {"run": run, "contract": contract.removesuffix("; docs/measuring.md"), "executed": executed}
    text = (Path(__file__).parent / "templates" / "guide.j2").read_text(encoding="utf-8")
    made = jinja2.Template(text, trim_blocks=True, undefined=jinja2.StrictUndefined).render(values)
    return [line for line in made.splitlines() if line]
