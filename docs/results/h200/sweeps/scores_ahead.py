"""Scores of a tile in flight under the softmax of the one before, in portable Triton: forms by tiles, a causal prompt.

    python scores_ahead.py > scores_ahead.jsonl

Triton 3.6.0 waits where a product is used, but for one that the next iteration uses behind another product's wait. So
`ahead` sums the values of the tile before first, and shifts its scores before the next are begun: with both alive ptxas
waits for every instruction of a product (C7514). P is carried, which puts it into shared memory.

Forms: "plain" as unpaged.py; "ahead" in every tile, masked ones first; "ahead, full tiles" behind plain masked ones;
"values", in full tiles but the last: a tile is scored before the values of the one before are summed, so that these
products are in flight under the softmax, and P stays in registers. The first tile is scored in a loop of one turn:
outside of a loop Triton keeps its K in shared memory until the end.
"""

import json
import statistics

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

KV_HEADS, GROUP, HEAD, BASE2 = 8, 4, 128, 0.1275174  # softmax scale times log2 e
TILES = [(128, 128, 8, 2), (64, 64, 4, 2), (128, 64, 8, 3)]
VALUES = [*TILES, (128, 64, 8, 2)]
ALONE = [(64, 128, 4, 2), (128, 32, 4, 2), (128, 32, 4, 3), (128, 64, 4, 2), (256, 64, 8, 2), (256, 64, 16, 2)]


@triton.jit
def shifted(s, m, base2, query_pos, j, BN: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:
        key = j * BN + tl.arange(0, BN)
        s = tl.where(tl.expand_dims(key, 0) <= tl.expand_dims(query_pos, 1), s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1) * base2)
    shift = m_new
    if MASKED:
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    return s * base2 - tl.expand_dims(shift, 1), m_new, tl.exp2(m - shift)


@triton.jit
def plain(j, q, m, l, acc, keys, values, row, base2, query_pos, BN: tl.constexpr, MASKED: tl.constexpr):
    s = tl.dot(q, tl.trans(keys.load([row + j * BN, 0])))
    x, m, alpha = shifted(s, m, base2, query_pos, j, BN, MASKED)
    p = tl.exp2(x)
    acc = tl.dot(p.to(q.dtype), values.load([row + j * BN, 0]), acc * tl.expand_dims(alpha, 1))
    return m, l * alpha + tl.sum(p, 1), acc


@triton.jit
def ahead(
    j, before, after, q, m, l, acc, s, p, keys, values, row, base2, query_pos, BN: tl.constexpr, MASKED: tl.constexpr
):
    acc = tl.dot(p, values.load([row + before * BN, 0]), acc)
    x, m, alpha = shifted(s, m, base2, query_pos, j, BN, MASKED)
    s = tl.dot(q, tl.trans(keys.load([row + after * BN, 0])))
    p = tl.exp2(x)
    return m, l * alpha + tl.sum(p, 1), acc * tl.expand_dims(alpha, 1), s, p.to(q.dtype)


@triton.jit
def kernel(
    query_ptr, keys, values, out_ptr, n, base2,
    BM: tl.constexpr, BN: tl.constexpr, FORM: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head, block = program % KV_HEADS, program // KV_HEADS
    rows = tl.arange(0, BM)
    token, head = block * (BM // GROUP) + rows // GROUP, kv_head * GROUP + rows % GROUP
    at = tl.expand_dims((token * (GROUP * KV_HEADS) + head) * 128, 1) + tl.expand_dims(tl.arange(0, 128), 0)
    q = tl.load(query_ptr + at)
    row = kv_head * n
    full = (block * (BM // GROUP) + 1) // BN
    stop = tl.cdiv((block + 1) * (BM // GROUP), BN)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, 128], tl.float32)
    p = tl.zeros([BM, BN], q.dtype)
    if FORM == "plain":
        for j in range(0, full):
            m, l, acc = plain(j, q, m, l, acc, keys, values, row, base2, token, BN, False)
        for j in range(full, stop):
            m, l, acc = plain(j, q, m, l, acc, keys, values, row, base2, token, BN, True)
    elif FORM == "values":
        whole = tl.maximum(full - 1, 0)
        s = tl.zeros([BM, BN], tl.float32)
        for j in tl.range(0, tl.minimum(whole, 1), num_stages=1):
            s = tl.dot(q, tl.trans(keys.load([row + j * BN, 0])))
        for j in range(0, whole):
            x, m, alpha = shifted(s, m, base2, token, j, BN, False)
            x = tl.exp2(x)
            l = l * alpha + tl.sum(x, 1)
            s = tl.dot(q, tl.trans(keys.load([row + (j + 1) * BN, 0])))
            acc = tl.dot(x.to(q.dtype), values.load([row + j * BN, 0]), acc * tl.expand_dims(alpha, 1))
        for j in range(whole, stop):
            m, l, acc = plain(j, q, m, l, acc, keys, values, row, base2, token, BN, True)
    elif FORM == "ahead":
        s = tl.dot(q, tl.trans(keys.load([row + (stop - 1) * BN, 0])))
        for i in range(0, stop - full):
            j = stop - 1 - i
            before, after = tl.minimum(j + 1, stop - 1), tl.maximum(j - 1, 0)
            m, l, acc, s, p = ahead(j, before, after, q, m, l, acc, s, p, keys, values, row, base2, token, BN, True)
        for i in range(stop - full, stop):
            j = stop - 1 - i
            after = tl.maximum(j - 1, 0)
            m, l, acc, s, p = ahead(j, j + 1, after, q, m, l, acc, s, p, keys, values, row, base2, token, BN, False)
        acc = tl.dot(p, values.load([row, 0]), acc)
    else:
        for i in range(0, stop - full):
            m, l, acc = plain(stop - 1 - i, q, m, l, acc, keys, values, row, base2, token, BN, True)
        if full > 0:
            s = tl.dot(q, tl.trans(keys.load([row, 0])))
            for j in range(0, full):
                before, after = tl.maximum(j - 1, 0), tl.minimum(j + 1, full - 1)
                m, l, acc, s, p = ahead(
                    j, before, after, q, m, l, acc, s, p, keys, values, row, base2, token, BN, False
                )
            acc = tl.dot(p, values.load([row + (full - 1) * BN, 0]), acc)
    tl.store(out_ptr + at, (acc / tl.expand_dims(l, 1)).to(q.dtype))


def captured(form, tiles, q, keys, values, out):
    """A graph of one launch, after one that compiled it."""
    bm, bn, num_warps, num_stages = tiles
    blocks = [TensorDescriptor.from_tensor(t, [bn, HEAD]) for t in (keys, values)]
    n, graph = len(q), torch.cuda.CUDAGraph()

    def run():
        kernel[(KV_HEADS * n * GROUP // bm,)](
            q, *blocks, out, n, BASE2, BM=bm, BN=bn, FORM=form, KV_HEADS=KV_HEADS, GROUP=GROUP,
            num_warps=num_warps, num_stages=num_stages,
        )  # fmt: skip

    run()
    with torch.cuda.graph(graph):
        run()
    return graph


def main() -> None:
    torch.manual_seed(0)
    asked = [("plain", (128, 64, 4, 2)), *(("plain", t) for t in TILES[:2])]
    asked += [("values", t) for t in VALUES]
    asked += [("ahead", t) for t in TILES + ALONE] + [("ahead, full tiles", t) for t in TILES]
    for n in (8192, 2048):
        q = torch.randn(n, KV_HEADS * GROUP, HEAD, device="cuda", dtype=torch.bfloat16)
        keys, values = (torch.randn(KV_HEADS * n, HEAD, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        outs = [torch.empty_like(q) for _ in asked]
        graphs = [captured(*one, q, keys, values, out) for one, out in zip(asked, outs, strict=True)]
        repeats, times = (5 if n > 4096 else 20), [[] for _ in asked]
        for _ in range(5):
            for graph, found in zip(graphs, times, strict=True):
                graph.replay()
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                for _ in range(repeats):
                    graph.replay()
                end.record()
                torch.cuda.synchronize()
                found.append(begin.elapsed_time(end) * 1e3 / repeats)
        for (form, tiles), found, out in zip(asked, times, outs, strict=True):
            line = {"keys": n, "form": form, **dict(zip(("bm", "bn", "num_warps", "num_stages"), tiles, strict=True))}
            line |= {"us": round(statistics.median(found), 1)}
            line |= {"max_difference_to_first": round((out.float() - outs[0].float()).abs().max().item(), 5)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
