"""Mutants of features beyond plain causal attention: biases, masks, trees, scales and fp8 outputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from common.cases.named import FEATURE_CASES
from common.mutants.emulation import Edits
from common.mutants.mutant import Mutant, Named, registrar

FEATURES: list[Mutant] = []
mutant = registrar(FEATURES)
_BY_NAME = {case.name: case for case in FEATURE_CASES}


def _on(name: str, tile: int = 32, segments: int = 1, **changes: object) -> Named:
    return Named(replace(_BY_NAME[name], **changes), tile, segments)


# --- biases -----------------------------------------------------------------------------------------------------------


@mutant("all", _on("alibi-slopes-of-4-heads"))
class AlibiOfTheOtherSign(Edits):
    def slopes(self, at, slopes):
        return -slopes


@mutant("one head", _on("alibi-slopes-of-32-heads"))
class AlibiMissingInAHead(Edits):
    """Drop the slope of the head that has the smallest one, 2^-8."""

    def slopes(self, at, slopes):
        return slopes * (slopes > slopes.min())


@mutant("all", _on("alibi-slopes-of-12-heads", dtype=torch.bfloat16))
class AlibiSlopesAsOfAPowerOfTwo(Edits):
    def slopes(self, at, slopes):
        return 2.0 ** (-8.0 * (1 + torch.arange(len(slopes))) / len(slopes))


@mutant("all", _on("alibi-with-sinks-and-softcap"))
class AlibiFromTheContext(Edits):
    """Compute slope * (k - context length): the same softmax, except beside a sink."""

    def distance(self, at, query, key):
        return (key - at.context_len).float().expand(query.shape[0], -1)


@mutant("all", _on("alibi-sqrt"))
class AlibiRootMissing(Edits):
    def distance(self, at, query, key):
        return (key - query).float()


@mutant("all", _on("alibi-sqrt-to-both-sides"))
class AlibiRootToTheRightToo(Edits):
    def distance(self, at, query, key):
        return -(query - key).abs().float().sqrt()


@mutant("all", _on("tree-of-8"))
class TreeRowShifted(Edits):
    def tree(self, at, row, column):
        return row - 1, column


@mutant("all", _on("tree-of-8"))
class TreeByPositionInTheSequence(Edits):
    """Apply the tree's bias from the sequence's first key on."""

    def tree(self, at, row, column):
        return row, column + at.context_len


@mutant("all", _on("tree-smaller-than-the-query"))
class TreeRepeatsItsLastRow(Edits):
    """Give a query past the tree the bias of the tree's last row."""

    def tree(self, at, row, column):
        return row.clamp(max=at.features.tree_bias.shape[0] - 1), column


# --- masks ------------------------------------------------------------------------------------------------------------


@mutant("all", _on("chunk-of-16-lookback-1"))
class ChunkLookbackOneMore(Edits):
    def chunk(self, at, chunk, lookback):
        return chunk, lookback + 1


@mutant("all", _on("chunk-of-10-lookback-2", dtype=torch.bfloat16))
class ChunkAsAWindow(Edits):
    """Replace the chunks by a window of chunk * (lookback + 1) keys."""

    def chunk(self, at, chunk, lookback):
        return 1, chunk * (lookback + 1) - 1


@mutant("all", _on("chunk-of-16"))
class ChunksCountedFromTheQuery(Edits):
    """Begin chunks at the first query's position, not at the sequence's."""

    def chunk(self, at, chunk, lookback):
        return 2**20, 0

    def visible(self, at, query, key, seen):
        first = (query - at.context_len) // at.features.chunk * at.features.chunk + at.context_len
        return seen & (key >= first)


@mutant("all", _on("spans-in-a-prompt"))
class SpanEndExclusive(Edits):
    def spans(self, at, spans):
        return [(first, last - 1) for first, last in super().spans(at, spans)]


@mutant("all", _on("spans-in-a-prompt"))
class SpansFromTheContext(Edits):
    """Count the positions of spans from the first query."""

    def spans(self, at, spans):
        return [(first + at.context_len, last + at.context_len) for first, last in super().spans(at, spans)]


@mutant("all", _on("spans-in-a-prompt"))
class FirstSpanAlone(Edits):
    def spans(self, at, spans):
        return super().spans(at, spans)[:1]


@mutant("all", _on("spans-left-of-the-window"))
class SpanClippedByTheWindow(Edits):
    def visible(self, at, query, key, seen):
        return seen & (query - key < at.features.sliding_window)


@mutant("all", _on("spans-longer-than-the-window"))
class ValuesOfLongSpansDropped(Edits):
    """Zero V left of the first row's window, though a span reaches past the window."""

    def wanted(self, at, key, seen):
        return super().wanted(at, key, seen) & (at.context_len - key < at.features.sliding_window)


@mutant("one sequence", _on("per-sequence-mixed"))
class CausalFlagOfTheNeighbour(Edits):
    def causal(self, at, flags):
        return bool(flags[(at.seq + 1) % len(flags)])


@mutant("one sequence", _on("per-sequence-with-window"))
class NonCausalSequenceSeesAllToTheRight(Edits):
    """Bound only the keys before a query by the window."""

    def visible(self, at, query, key, seen):
        right = (key > query) & (key < at.seq_len)
        return seen if at.features.causal_per_sequence[at.seq] else seen | right


@mutant("all", _on("cross-fewer-keys-than-queries"))
class CrossIsCausal(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key <= query.clamp(min=0))


@mutant("all", _on("fewer-keys-non-causal"))
class NonCausalAsksForAPosition(Edits):
    """Hide everything from rows before the first key, as if the attention were causal."""

    def visible(self, at, query, key, seen):
        return seen & (query >= 0)


@mutant("all", _on("fewer-keys-causal", dtype=torch.bfloat16))
class FirstQueryAtTheFirstKey(Edits):
    """Align the mask with the first key instead of the last, as FlashAttention did before 2.1."""

    def visible(self, at, query, key, seen):
        return key <= query - min(at.context_len, 0)


@mutant("all", _on("fewer-keys-to-both-sides", dtype=torch.bfloat16))
class WindowOfARowBeforeTheKeysAtTheFirst(Edits):
    """Clamp a negative position to 0, so that the row's window covers keys that are too far away."""

    def visible(self, at, query, key, seen):
        return seen | ((query < 0) & (key < at.features.sliding_window))


@mutant("all", _on("sinks-without-keys", dtype=torch.bfloat16))
class SinkWithoutKeysDropped(Edits):
    """Return LSE -inf though the sink is part of the sum: a merge by LSE then weighs the other part too much."""

    def sink(self, at, sinks):
        return super().sink(at, sinks) if at.seq_len else torch.full_like(sinks, -torch.inf)


@mutant("all", _on("fewer-keys-sinks-fp8-query"))
class SinkOfABlindRowDropped(Edits):
    """Return LSE -inf, despite its sink, for a row whose mask hides every key."""

    def lse(self, at, lse):
        position = torch.arange(at.context_len, at.seq_len)
        return torch.where(position < 0, -torch.inf, lse)


# --- sizes, scales and fp8 --------------------------------------------------------------------------------------------


@mutant("all", _on("fp8-scales-of-heads", dtype=torch.bfloat16))
class ScaleOfKForV(Edits):
    def kv_scale(self, at, kind, scale):
        return at.features.key_scale


@mutant("one head", _on("fp8-scales-of-heads", dtype=torch.bfloat16))
class ScaleOfTheFirstHeadForAll(Edits):
    def kv_scale(self, at, kind, scale):
        return scale[:1].expand(len(scale)).contiguous()


@mutant("all", _on("fp8-scales-of-tokens"))
class ScaleOfTheNextSlot(Edits):
    def kv_scale(self, at, kind, scale):
        return scale.roll(-1, 1) if kind == "key" else scale


@mutant("one sequence", _on("int8"))
class ScaleOfTheLogicalPage(Edits):
    """Read the scales of one sequence's V in logical page order instead of through the block table."""

    def kv_scale(self, at, kind, scale):
        if kind == "key" or at.seq != 0:
            return scale
        table = at.batch.block_table[at.seq].long()
        moved = scale.clone()
        used = -(-at.seq_len // scale.shape[1])
        moved[table[:used]] = scale[table[:used].flip(0)]
        return moved


@mutant("all", _on("fp8-fnuz"))
class FnuzReadAsFn(Edits):
    """Read e4m3fnuz as e4m3fn, where the same bits mean twice as much."""

    def stored(self, at, kind, x):
        return x.view(torch.float8_e4m3fn)


@mutant("all", _on("fp8-query-fp16-out-scales"))
class QueryScaleForgotten(Edits):
    def query_scale(self, at, scale):
        return None


@mutant("all", _on("fp8-query-fnuz"))
class ProbabilitiesTimes256InFnuz(Edits):
    """Multiply P by 256, which exceeds e4m3fnuz's 240, with a cast that does not saturate."""

    def rounded(self, at, p, dtype):
        return (2 * p).masked_fill(2 * p > torch.finfo(dtype).max, float("nan")).to(dtype).float() / 2


@mutant("all", _on("fp8-large-scales-of-tokens-fp16"))
class ProbabilitiesTimesScaleInFp16(Edits):
    """Multiply P by its scale in fp16, where the product overflows to Inf."""

    def rounded(self, at, p, dtype):
        return p.half()


@mutant("all", _on("fp8-out-saturated"))
class OutputNotCut(Edits):
    """Cast to fp8 without saturation, which gives NaN past 448."""

    def cut(self, at, rows, most):
        return rows.masked_fill(rows.abs() > most, float("nan"))


@mutant("all", _on("fp8-out"))
class OutputTimesItsScale(Edits):
    def cut(self, at, rows, most):
        return super().cut(at, rows * at.features.out_scale**2, most)


@mutant("all", _on("value-64-head-96"))
class ScaleOfTheValueSize(Edits):
    def scale(self, at, scale):
        return at.batch.shape.value_lanes**-0.5
