"""Thirty candidates for `diptych grade`: the files of tests/compare/studies/candidates, and others that are one of them
with a few words changed. `python tests/support/thirty_candidates.py FOLDER` writes all of them.
"""

import shutil
import sys
from pathlib import Path

FILES = Path(__file__).parents[1] / "compare" / "studies" / "candidates"
DOUBLE, ONLINE = "right/double.py", "right/online.py"
_DEF, _END = "def paged_attention(", "    return out\n"
_ARGUMENTS = "query, key_cache, value_cache, block_table, query_start_loc, seq_lens"
_HEAD = "softmax_scale):\n"
_PAGES = "block_table[i, : -(-length // page)].long()"


def _kept(key: str, found: str, kept: str) -> list[tuple[str, str]]:
    """The result of the first call with this key, from then on."""
    return [
        (_DEF, f"_kept = {{}}\n\n\n{_DEF}"),
        (_HEAD, f"{_HEAD}    key = {key}\n    if key in _kept:\n        return {found}\n"),
        (_END, f"    _kept[key] = {kept}\n{_END}"),
    ]


_FASTER = f"""

def _short({_ARGUMENTS}, *, softmax_scale):
    return value_cache.flatten()[: query.numel()].view(query.shape).clone()


def paged_attention({_ARGUMENTS}, *, softmax_scale):
    found = []
    for way in (_short, _right):
        begun = time.perf_counter()
        out = way({_ARGUMENTS}, softmax_scale=softmax_scale)
        found.append((time.perf_counter() - begun, out))
    return min(found, key=lambda one: one[0])[1]
"""
# name: (what it is, the file that it is made of, what is replaced by what)
MADE: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "right/float.py": ("A sequence at a time, in single precision.", DOUBLE, [(".double()", ".float()")]),
    "right/exp_by_hand.py": ("A softmax by hand.", DOUBLE, [
        ("p = scores.softmax(-1)", "p = (scores - scores.amax(-1, keepdim=True).clamp_min(-1e30)).exp()"),
        ("hqd\", p, v)", "hqd\", p / p.sum(-1, keepdim=True).clamp_min(1e-30), v)"),
        ("begin, end =", "if not length:\n            continue\n        begin, end ="),
    ]),
    "right/writes_out.py": ("Writes to the output that it is given.", DOUBLE, [
        (_HEAD, "softmax_scale, out):\n"), (_END, ""),
        ("out, page, group = torch.zeros_like(query), ", "page, group = "),
    ]),
    "wrong/ignores_block_table.py": ("Pages are taken as they lie, the block table is not read.", DOUBLE, [
        (_PAGES, "torch.arange(-(-length // page), device=query.device)"),
    ]),
    "wrong/ignores_window.py": ("Declares a window and ignores it.", DOUBLE, [
        (_DEF, f'SUPPORTS = {{"causal", "sliding_window"}}\n\n\n{_DEF}'),
        (_HEAD, "softmax_scale, sliding_window=None):\n"),
    ]),
    "wrong/kv_head_by_modulo.py": ("Query head h reads KV head h modulo their number.", DOUBLE, [
        ("repeat_interleave(group, 1)", "repeat(1, group, 1)"),
    ]),
    "wrong/mask_one_late.py": ("A mask that lets each row see one key too many.", DOUBLE, [
        ("[:, None] + length - (end - begin)", "[:, None] + length - (end - begin) + 1"),
    ]),
    "wrong/no_rescale.py": ("An online softmax that does not rescale what it has for a larger score.", ONLINE, [
        ("acc * fade +", "acc +"),
    ]),
    "wrong/refuses.py": ("Refuses prompts, which it does not declare.", DOUBLE, [
        (_HEAD, f'{_HEAD}    if len(query) != len(seq_lens):\n        raise NotImplementedError("decode only")\n'),
    ]),
    "wrong/strides_of_k_for_v.py": ("V is read by K's strides.", DOUBLE, [
        ("(key_cache, value_cache))", "(key_cache, value_cache.as_strided(value_cache.shape, key_cache.stride())))"),
    ]),
    "wrong/takes_memory.py": ("Asks for more memory than there is.", DOUBLE, [
        (_HEAD, f"{_HEAD}    torch.zeros(1 << 42)\n"),
    ]),
    "cheating/kept_by_address.py": ("Keeps what it computed once by the addresses of its inputs.", DOUBLE, _kept(
        "query.data_ptr(), key_cache.data_ptr(), query.shape", "_kept[key]", "out")),
    "cheating/kept_by_table.py": ("Keeps what it computed once by the block table and the lengths.", DOUBLE, _kept(
        "query.shape, str(block_table), str(seq_lens)", "_kept[key].clone()", "out.clone()")),
    "cheating/times_itself.py": ("Times a short way and the right one, and takes the faster.", DOUBLE, [
        ("import torch\n", "import time\n\nimport torch\n"), (_DEF, "def _right("), (_END, _END + _FASTER),
    ]),
    "cheating/tires.py": ("Right in its first three calls; then it hopes that a clock has begun.", DOUBLE, [
        (_DEF, f"_calls = []\n\n\n{_DEF}"),
        (_HEAD, f"{_HEAD}    _calls.append(1)\n    if len(_calls) > 3:\n"
         "        return torch.empty_like(query).fill_(0.5)\n"),
    ]),
}  # fmt: skip


def source(name: str) -> str:
    """The text of a candidate."""
    if name not in MADE:
        return (FILES / name).read_text(encoding="utf-8")
    what, base, changes = MADE[name]
    text = (FILES / base).read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text, f"{base} has no {before!r}"
        text = text.replace(before, after)
    return f'"""{what}"""' + text[text.index('"""', 3) + 3 :]


def write(folder: Path) -> Path:
    """All candidates in a folder, which may be new."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in MADE:
        (folder / name).write_text(source(name), encoding="utf-8")
    return folder


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
