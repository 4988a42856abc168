"""Which kernel and config serve a batch, and why.

    python -m compare explain q1s2k_16q512s1536 --gpu h200
    python -m compare explain q2k --gpu h200 --pair triton/q_block helion/q_block      why the one takes longer
    python -m compare explain '16q4s4k~@8:1:128' --gpu h200      a row of a suite, by the name that reports have

Per DSL: what the public call chooses, the segments that follow, what chose (a measured winner, or what logs teach), the
candidates with their predicted times, and which kernels' measurements are stale. Nothing is compiled or launched, so
the GPU need not be here. With --pair two kernels are compiled for the GPU at their configs: what a warp issues for a
tile, what limits, and the difference that explains most (compare/static/pair.py).

Exit codes: 0; 2 for an option or a batch that cannot be read, or a pair that has no code or no estimate for the GPU; 3
where --pair has no GPU to compile for; 5 where neither DSL can be imported.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from common import gpus
from common.choice.learned import COUNT
from common.gpus import Gpu
from common.serving.choice import Family
from common.serving.grid import decided_by
from common.spec import AttentionShape, SpecError
from common.spec.metadata import SHORT_QUERY, BatchStats, Lens, cdiv
from compare.competitors import registry
from compare.exits import NO_GPU, NOTHING, OK, USAGE, refusing, say
from compare.static import pair
from compare.workloads import Ask, GrammarError, Workload, parse_lens, parse_shape, suites
from compare.workloads.numbers import page, seed, window

HELP = "say which kernel and config serve a batch, and why"
FORM = {"shape": "llama-3-8b", "block_size": 16, "dtype": "bf16"}  # where none is given


def parts(config: Any, lens: Lens) -> list[tuple[str, Any, Lens]]:
    """(name, config, the sequences it serves) of a config's parts; one without a name where it has none. Where all
    sequences are items `together`, the part of prompts serves them and no other is read."""
    nested = [
        field.name for field in dataclasses.fields(config) if dataclasses.is_dataclass(getattr(config, field.name))
    ]
    if not nested:
        return [("", config, lens)]
    if getattr(config, "together", False):
        return [("prefill", config.prefill, lens)]
    short = [pair for pair in lens if pair[0] <= SHORT_QUERY]
    served = {"decode": short, "prefill": [pair for pair in lens if pair[0] > SHORT_QUERY]}
    return [(name, getattr(config, name), served.get(name, lens)) for name in nested]


def segments(config: Any, lens: Lens, window: int | None) -> str:
    """How many segments a sequence's tiles are dealt to; those with fewer tiles use fewer."""
    most = getattr(config, "num_segments", None)
    if most is None:
        return "none: a program takes all tiles of its Q Block"
    if not lens:
        return f"up to {most}, for no sequence of this batch"
    keys = max(keys if window is None else min(keys, window + query) for query, keys in lens)
    tiles = max(cdiv(keys, config.tile_size), 1)
    used = cdiv(tiles, cdiv(tiles, most))
    return f"up to {most}; {used} for the longest, {tiles} tiles of {config.tile_size} keys"


def _words(config: Any) -> str:
    plain = registry.config_dict(config)
    return registry.config_words({name: value for name, value in plain.items() if not isinstance(value, Mapping)})


def _line(name: str, text: str) -> str:
    return f"  {name:11} {text}"


def explain(dsl: str, lens: Lens, shape: AttentionShape, ask: Ask, gpu: Gpu | None) -> list[str]:
    """The lines of one DSL. Raises registry.Unavailable where it cannot be imported."""
    portable = registry.load(f"{dsl}/auto")
    native = registry.load(f"{dsl}/native.auto") if f"{dsl}/native.auto" in registry.NATIVE else portable
    told, stats = _stats(lens, shape, ask)
    family = native.FAMILY
    choice = native.choose(shape, told, gpu, ask.members(shape), sees=ask.sees)
    lines = [f"{dsl}: {choice.kernel}"]
    for name, config, served in parts(choice.config, lens):
        lines.append(_line(name or "config", _words(config)))
        lines.append(_line("  segments" if name else "segments", segments(config, served, ask.sliding_window)))
    lines.append(_line("chosen by", choice.path if gpu is None or choice.measured else f"dsl_{dsl}/{choice.path}"))
    if native is not portable and choice.kernel == native.KERNEL:
        other = portable.choose(shape, told, gpu, ask.members(shape), sees=ask.sees)
        lines.append(_line("portable", f"{other.kernel}, with portable=True or {native.PORTABLE}=1"))
    if gpu and (stale := family.winners(gpu).stale):
        lines.append(_line("stale", f"{', '.join(stale)}: timed with other code; `diptych tune` times it anew"))
    lines.append(_line("provenance", choice.provenance))
    if gpu and family.learned(gpu):
        lines += candidates(family, shape, stats, gpu, ask)
    refused = [error for name in registry.RUNGS if (error := portable.FAMILY.refusal(name, gpu))]
    return lines + [_line("refused", str(error)) for error in refused]


def candidates(family: Family, shape: AttentionShape, stats: BatchStats, gpu: Gpu, ask: Ask) -> Iterator[str]:
    """The best of what logs teach: predicted times, what limits them, and what a measurement of them may gain."""
    known, needs = family.learned(gpu), ask.members(shape)
    question = family.question(shape, gpu, needs, ask.sees)
    yield _line("candidates", "of what logs teach: predicted us, the term that limits, config")
    for one in known.told(question, stats, known.first(question, stats)):
        words = registry.config_words(one.candidate.config)
        yield _line("", f"{one.us:8.1f}  {one.limits:7} {one.candidate.kernel}: {words}")
    if known.gpu == gpu.name and (lost := known.held_out.get("seed")):
        first, best = (lost[name].split("|")[0].strip() for name in ("first pick", f"best of the first {COUNT}"))
        told = f"these {COUNT} once (`diptych tune --model`) leaves a mean loss of {best}%, the first alone {first}%"
        yield _line("measuring", f"{told} (rows held out)")


def _stats(lens: Lens, shape: AttentionShape, ask: Ask) -> tuple[BatchStats, BatchStats]:
    """Of the batch, and as its choice is asked for."""
    told = BatchStats.of(lens)
    return told, decided_by(told, ask.sees)


def _heading(text: str, lens: Lens, shape: AttentionShape, ask: Ask, gpu: Gpu | None) -> list[str]:
    told, asked = _stats(lens, shape, ask)
    heads = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size}"
    where = f"{gpu.name} ({gpu.title})" if gpu else "the CPU: no GPU here, --gpu names one"
    return [
        f"{text} on {where}; {heads}, pages of {shape.block_size}, {str(shape.dtype).removeprefix('torch.')}",
        *(
            f"{name}: sequences {stats.num_seqs}, decodes {stats.num_decodes}, queries up to "
            f"{stats.max_query_len}, keys up to {stats.max_seq_len}"
            for name, stats in (("batch", told), ("asked as", asked))
        ),
    ]


def options(new: argparse.ArgumentParser) -> None:
    rows = "or the name of a row of a suite, which has its own shape, page and dtype"
    new.add_argument("workload", help=f"a batch, as q1s2k_16q512s1536, {rows}")
    new.add_argument("--seed", type=seed, default=0, help="of the suite unseen, to find its row by name (default 0)")
    new.add_argument("--gpu", default="auto", help="h200, mi300, ...; auto (default): the one that is here")
    new.add_argument("--dsl", choices=registry.DSLS, help="one of them (default both)")
    new.add_argument("--shape", help="heads:kv_heads:head_size or a model (default llama-3-8b)")
    new.add_argument("--block-size", type=page, help="tokens of a KV-cache page (default 16)")
    new.add_argument("--dtype", help="bf16 (default), fp16, fp32")
    new.add_argument("--pair", nargs=2, metavar="KERNEL", help="two ids: why the one takes longer than the other")
    new.add_argument("--window", type=window, help="sliding window, the query's own token included")


def _row(arguments: argparse.Namespace) -> Workload:
    """The batch in the grammar, else the row of a suite. Raises GrammarError, also for a form beside a row, and
    SpecError."""
    form = {name: getattr(arguments, name) for name in FORM if getattr(arguments, name) is not None}
    try:
        lens = parse_lens(arguments.workload)
    except GrammarError:
        if not (row := suites.named(arguments.workload, arguments.seed)):
            raise
        for name, found in form.items():
            allowed = f"none beside {arguments.workload}, a row of a suite, which has its own"
            raise GrammarError(f"--{name.replace('_', '-')}: found {found}, allowed {allowed}") from None
    else:
        row = Workload(arguments.workload, lens, parse_shape(*(FORM | form).values()))
    window = arguments.window or row.ask.sliding_window
    ask = dataclasses.replace(row.ask, sliding_window=window)
    ask.check()
    return dataclasses.replace(row, ask=ask)


def _pair(workload: Workload, kernels: Sequence[str], gpu: Gpu | None) -> int:
    """The lines of two kernels on a batch; the exit code."""
    if gpu is None:
        say("--pair: found no GPU here, allowed one by its name, as --gpu h200")
        return NO_GPU
    try:
        kernels = [found for name in kernels for found in registry.select(name)]
        if len(kernels) != 2:
            raise registry.UnknownKernel(" ".join(kernels))
        print("\n".join(pair.told(workload, kernels, gpu)))
    except (registry.UnknownKernel, pair.NotCompiled, pair.NoEstimate) as error:
        say(error)
        return USAGE
    return OK


@refusing(GrammarError, SpecError, gpus.UnknownGpu)
def main(arguments: argparse.Namespace) -> int:
    row = _row(arguments)
    lens, shape, ask, told = row.lens, row.shape, row.ask, 0
    here = gpus.detect(0) if torch.cuda.is_available() else None
    gpu = here if arguments.gpu == "auto" else gpus.resolve(arguments.gpu)
    if arguments.pair:
        return _pair(row, arguments.pair, gpu)
    print("\n".join(_heading(arguments.workload, lens, shape, ask, gpu)))
    for dsl in [arguments.dsl] if arguments.dsl else registry.DSLS:
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                lines = explain(dsl, lens, shape, ask, gpu)
            warned = sorted({str(one.message) for one in said})
            print("\n" + "\n".join([*lines, *(_line("warning", text) for text in warned)]))
            told += 1
        except registry.Unavailable as reason:
            print(f"\n{dsl}: unavailable: {reason}")
    return OK if told else NOTHING
