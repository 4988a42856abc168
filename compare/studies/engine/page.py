"""The page of `study engine`: tables and a figure from its rows."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.analysis.markup import table
from compare.report import style
from compare.studies import template

NAME = "engine.md"
BASE, OTHER = "fa3", "vllm_triton"
KV = {"auto": "bf16"} | {one: one for one in ("fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")}
SCENARIO = {
    "max_seq_len": "at most {:,} tokens a sequence", "max_tokens": "steps of at most {:,} tokens",
    "max_seqs": "at most {:,} sequences beside each other", "prefix_caching": "the prefix cache on",
}  # fmt: skip
DISK = {"": "some", "first": "none", "second": "all"}
SHAPES = {
    "llama-3-8b": "Llama-3-8B's shape", "tiny": "A tiny Llama",
    "llama-3-70b-tp8": "One of eight GPUs' share of Llama-3-70B",
    "gpt-oss-20b": "gpt-oss-20b's heads of 64 with sinks, every other layer with a window, dense",
    "gemma-4-256": "A small Gemma 4, heads of 256 and of 512; its layers of 256 count",
    "gemma-4-512": "A small Gemma 4, heads of 256 and of 512; its layers of 512 count",
}  # fmt: skip
START = {
    "start_s": "start s", "load_model": "of it: model", "warm_s": "our warm-up", "capture_model": "graphs",
    "warmed": "calls", "kernels": "kernels", "compiled": "compiled",
}  # fmt: skip
UNENDED = ("lost", "cut")  # rows that say why an engine did not end
STATES = ("end", *UNENDED)  # rows of a process, not of a measurement
_STYLE = {"fa3": "baseline/flash_attn3", "vllm_triton": "baseline/vllm_triton"}
Rows = Sequence[dict[str, Any]]


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; a torn last line is dropped."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]


def told(row: dict[str, Any]) -> str:
    """A row as one line for the terminal."""
    hidden = ("engine", "graphs", "gpu", "values", "vllm", "host")
    shown = {key: value for key, value in row.items() if key not in hidden}
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in shown.items()
    )


def bad(rows: Rows) -> bool:
    """Whether a token was wrong, or an engine was lost and never ended well."""
    ended = {(row["engine"], row["graphs"]) for row in rows if row["part"] == "end"}
    lost = any(row["part"] == "lost" and (row["engine"], row["graphs"]) not in ended for row in rows)
    return lost or any(row.get("wrong") for row in rows)


def newest(rows: Rows) -> list[dict[str, Any]]:
    """Per engine the rows of the sources that measured it last (of vLLM's backends: of the versions), and how its last
    process ended."""
    last = {_who(row): _made_by(row) for row in rows if row["part"] not in STATES}
    states = {_who(row): row for row in rows if row["part"] in STATES}
    return [
        row for row in rows
        if (row is states[_who(row)] if row["part"] in STATES else _made_by(row) == last[_who(row)])
    ]  # fmt: skip


def _who(row: dict[str, Any]) -> tuple[str, str]:
    return row["engine"], row["graphs"]


def _made_by(row: dict[str, Any]) -> Any:
    if row["engine"] in _STYLE:
        return tuple(row.get(name) for name in ("vllm", "torch", "triton"))
    return row.get("source")


def engines(rows: Rows) -> list[tuple[str, str]]:
    """The (engine, graphs) pairs, full graphs first, in the order of the rows."""
    found = dict.fromkeys((row["engine"], row["graphs"]) for row in rows if row["part"] not in STATES)
    return sorted(found, key=lambda one: ("full", "always", "partial", "eager").index(one[1]))


def latencies(rows: Rows) -> dict[tuple[str, str], dict[int, float]]:
    """engine -> tokens out -> seconds: the median of the passes that reached it, without rows with a wrong token."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        if row["part"] == "latency" and not row["wrong"]:
            found.setdefault((row["engine"], row["graphs"]), {}).setdefault(row["n"], []).append(row["seconds"])
    return {one: {n: statistics.median(times) for n, times in at.items()} for one, at in found.items()}


def latency_table(rows: Rows) -> str:
    """Each engine's speed as a share of FA3's with full graphs, by tokens out; in brackets, of FA3's with the same
    graphs."""
    times = latencies(rows)
    lengths = sorted({n for at in times.values() for n in at})
    base = times.get((BASE, "full"), {})
    body = []
    for one in [one for one in engines(rows) if one in times]:
        alike = times.get((BASE, one[1]), {}) if one[1] != "full" and one[0] != BASE else {}
        cells = [_cell(times[one].get(n), base.get(n), alike.get(n)) for n in lengths]
        wrong = sum(row["wrong"] for row in rows if (row["engine"], row["graphs"]) == one and row.get("wrong"))
        body.append([*one, *cells, wrong])
    return table(["engine", "graphs", *(f"N={n}" for n in lengths), "wrong tokens"], body, 2) if body else ""


def _cell(took: float | None, base: float | None, alike: float | None) -> str:
    """A time as a share of FA3's; in seconds if FA3 has none."""
    if took is None:
        return ""
    shares = [f"{base / took:.3f}" if base else f"{took:.2f} s", *([f"({alike / took:.2f})"] if alike else [])]
    return " ".join(shares)


def serving_table(rows: Rows) -> str:
    """A line per engine: its last pass, and what its first pass compiled."""
    passes: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        if row["part"] == "serving":
            passes.setdefault((row["engine"], row["graphs"]), {})[row["pass"]] = row
    base = passes.get((BASE, "full"), {})
    of = base[max(base)]["tokens_per_s"] if base else None
    body = []
    for one in [one for one in engines(rows) if one in passes]:
        last, first = passes[one][max(passes[one])], passes[one][min(passes[one])]
        share = f"{last['tokens_per_s'] / of:.3f}" if of else ""
        body.append([
            *one, f"{last['tokens_per_s']:,.0f}", share, f"{last['ttft_p50_ms']:.0f}, {last['ttft_p99_ms']:.0f}",
            f"{last['itl_p50_ms']:.1f}, {last['itl_p99_ms']:.1f}", f"{last['done']} of {last['requests']}",
            f"{first['tokens_per_s']:,.0f}, {first.get('compiles', 0)}",
            sum(row["wrong"] for row in passes[one].values()),
        ])  # fmt: skip
    head = ["engine", "graphs", "tokens/s", "of FA3", "TTFT p50, p99 ms", "ITL p50, p99 ms", "requests"]
    return table([*head, "first pass tokens/s, compiled", "wrong tokens"], body, 2) if body else ""


def agreement(rows: Rows) -> str:
    """A line per engine: distance of log-probabilities from those of FLASH_ATTN, or of vLLM's Triton kernel where that
    serves no such model; and of those of a request that runs beside others from those that it has alone."""
    values = {(row["engine"], row["graphs"]): row["values"] for row in rows if row["part"] == "logprobs"}
    base = values.get((BASE, "full"), values.get((OTHER, "full")))
    moved = {(row["engine"], row["graphs"]): row for row in rows if row["part"] == "mixed"}
    body = []
    for one in engines(rows):
        mine = values.get(one)
        far = max(map(abs, (a - b for a, b in zip(mine, base, strict=False)))) if mine and base else None
        unmet = [row["unmet"] for row in rows if (row["engine"], row["graphs"]) == one and "unmet" in row]
        beside = [f"{moved[one]['moved']:.2e}", moved[one]["wrong"]] if one in moved else [""] * 2 * bool(moved)
        body.append([*one, "" if far is None else f"{far:.2e}", *beside, max(unmet, default="")])
    head = ["engine", "graphs", "largest difference of a log-probability"]
    head += ["of the same beside others", "wrong tokens there"] if moved else []
    return table([*head, "calls that met another launch"], body, 2) if body else ""


def start_table(rows: Rows) -> str:
    """A line per engine and kind of start, the first one first: seconds, and of its largest parts."""
    body, order = [], engines(rows)
    alone = [row for row in rows if row["part"] == "start" and not row.get("at_once")]
    found = {(row["engine"], row["graphs"], row.get("caches", "")): row for row in alone}
    for (name, graphs, caches), row in sorted(found.items(), key=lambda one: (order.index(one[0][:2]), one[0][2])):
        cells = [row.get(part, "") for part in START]
        shown = (f"{cell:.1f}" if isinstance(cell, float) else cell for cell in cells)
        body.append([name, graphs, DISK[caches], *shown])
    return table(["engine", "graphs", "code on the disk", *START.values()], body, 3) if body else ""


def figure(rows: Rows, path: Path) -> Path | None:
    """Seconds for N tokens as a share of FA3's with full graphs; None where there is nothing to compare."""
    times = latencies(rows)
    base = times.get((BASE, "full"), {})
    if len(base) < 2:
        return None
    plt = style.pyplot()
    drawn, axes = plt.subplots(figsize=(style.WIDTH_IN, 4.6), layout="constrained")
    for name, graphs in [one for one in engines(rows) if one in times]:
        shared = sorted(set(base) & set(times[name, graphs]))
        colour, marker, filled = style.STYLES.get(_STYLE.get(name, name), style.OTHER)
        axes.plot(
            shared, [base[n] / times[name, graphs][n] for n in shared], color=colour, marker=marker, fillstyle=filled,
            linestyle="-" if graphs == "full" else "--", label=f"{name}, {graphs} graphs",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(base), [str(n) for n in sorted(base)])
    axes.set_xlabel("tokens out, behind a prompt of 500")
    axes.set_ylabel("speed, FA3 with full graphs = 1")
    drawn.legend(fontsize=8, ncols=3, loc="outside upper center")  # lines reach every corner of the axes
    return style.save(drawn, path)


def render(rows: Rows, drawn: Path | None) -> str:
    """The page as markdown: templates/engine.md, without the sections whose table is empty."""
    import jinja2

    kept = newest(rows)
    starts = [row for row in kept if row["part"] == "start"]
    about = starts[-1] if starts else {}
    scenario = [text.format(about[name]) for name, text in SCENARIO.items() if name in about]
    served = [row for row in kept if row["part"] == "serving"]
    values = {
        "gpu": about.get("gpu", "No GPU yet"), "model": SHAPES.get(about.get("model"), "No model"),
        "versions": ", ".join(f"{name} {about[name]}" for name in ("vllm", "torch", "triton") if name in about),
        "kv": "; ".join([KV[about.get("kv_dtype", "auto")], *scenario]), "drawn": drawn, "latency": latency_table(kept),
        "serving": serving_table(kept), "agreement": agreement(kept), "starts": start_table(kept),
        "seqs": served[-1].get("max_seqs", 256) if served else 0, "trace": served[-1].get("trace") if served else None,
        "lost": [row for row in kept if row["part"] in UNENDED],
    }  # fmt: skip
    how = {"trim_blocks": True, "keep_trailing_newline": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Template(template("engine"), **how).render(values).rstrip("\n") + "\n"


def write(out: Path, rows: Rows) -> Path:
    """Write figure and page into `out`; returns the page's path."""
    drawn = figure(newest(rows), out / "engine.svg")
    (out / NAME).write_text(render(rows, drawn), encoding="utf-8")
    return out / NAME
