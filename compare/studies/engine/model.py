"""A model that counts: after token t comes t + 1, and only right attention produces it.

The residual stream has three parts. The first half holds the token's code. One layer reads it, the first unless Sizes
says another: query and key are one projection of the code, so that the query's own token has the largest score, and the
value, another projection, goes to the second part, from which alone the next token is read. A page written to a wrong
place, a wrong length or a wrong sum therefore gives another token. All other layers add noise to the third part, which
the logits read weakly: log-probabilities then distinguish kernels whose tokens agree.

With a global_head_size the model is vLLM's Gemma 4: layers with a window and heads of head_size take turns with layers
that see every key and have heads of global_head_size. Its layers norm what they add, so that a norm's weight sets it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

SHARPNESS = 2.0  # of layer 0: scores 22 to 23 for the own token
LOGIT = 14.0  # of the next token; others are within 3
NOISE = 0.02  # of the logits' weights for the third part
STREAM = 0.5  # length of the third part: if it exceeded the codes', the last norm would drown them


TWO_SIZES = "diptych_two_sizes"  # model type of such a model's config
WINDOW = 128  # keys of its layers with a window, and of every other layer with sinks


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; default Llama 8B. counts: the layer whose attention makes the next token."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    mlp: int = 14336
    vocabulary: int = 128256
    global_head_size: int = 0
    counts: int = 0
    sinks: bool = False  # and every other layer has a window, as in gpt-oss

    @property
    def counting_head(self) -> int:
        """The head size of the layer that counts."""
        return self.global_head_size if self.global_head_size and self.counts % 2 else self.head_size

    def config(self, max_seq_len: int) -> dict[str, Any]:
        """config.json of transformers."""
        more = self._gemma() if self.global_head_size else self._windows() if self.sinks else {}
        return self._llama(max_seq_len) | more

    def _windows(self) -> dict[str, Any]:
        kinds = ["sliding_attention", "full_attention"]
        return {"layer_types": kinds * (self.layers // 2), "sliding_window": WINDOW}

    def _gemma(self) -> dict[str, Any]:
        kinds = {"sliding_attention": 1e4, "full_attention": 1e6}
        return {
            "architectures": ["Gemma4ForCausalLM"], "model_type": TWO_SIZES, "global_head_dim": self.global_head_size,
            "layer_types": list(kinds) * (self.layers // 2), "sliding_window": WINDOW, "rope_theta": None,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in kinds.items()},
        }  # fmt: skip

    def _llama(self, max_seq_len: int) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.mlp, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_size, "vocab_size": self.vocabulary,
            "max_position_embeddings": max_seq_len, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1,
            "eos_token_id": 2, "attention_bias": False, "mlp_bias": False,
        }  # fmt: skip


_GEMMA = Sizes(4, 1024, 8, 2, 256, 512, 512, 512)  # which layers count: those of 256 or those of 512
SIZES = {
    "llama-3-8b": Sizes(),
    "tiny": Sizes(layers=2, hidden=512, heads=4, kv_heads=2, head_size=64, mlp=256, vocabulary=512),
    "gemma-4-256": _GEMMA,
    "gemma-4-512": replace(_GEMMA, counts=1),
    "llama-3-70b-tp8": Sizes(80, 8192, 8, 1, 128, 3584, 16032),
    "gpt-oss-20b": Sizes(24, 2880, 64, 8, 64, 11520, 32768, counts=1, sinks=True),
}


def expected(prompt: Iterable[int], count: int, vocabulary: int) -> list[int]:
    """The tokens that follow a prompt."""
    last = list(prompt)[-1]
    return [(last + 1 + step) % vocabulary for step in range(count)]


@torch.no_grad()
def fill(parameters: Iterable[tuple[str, torch.Tensor]], sizes: Sizes) -> None:
    """Weights by their names in vLLM (q, k and v together) or in transformers (apart)."""
    given = dict(parameters)
    device = next(iter(given.values())).device
    draw = torch.Generator(device).manual_seed(0)
    head = sizes.counting_head
    half, lanes = sizes.hidden // 2, sizes.kv_heads * head
    lanes = min(lanes, sizes.hidden // 4)
    read = slice(half, half + lanes)
    codes = torch.randint(0, 2, (sizes.vocabulary, half), generator=draw, device=device).to(torch.bfloat16) * 2 - 1
    # a loader makes the model's dtype torch's default; the head's sums need more bits
    wide = {"generator": draw, "device": device, "dtype": torch.float32}
    match = torch.randn(head, half, **wide) * half**-0.5
    carry = torch.randn(sizes.kv_heads * head, half, **wide) * half**-0.5
    for name, weight in given.items():
        _fill(name, weight, sizes, draw, (codes, match, carry, read))


def _fill(name: str, weight: torch.Tensor, sizes: Sizes, draw: torch.Generator, parts: tuple) -> None:
    codes, match, carry, read = parts
    half, first, head = codes.shape[1], f".layers.{sizes.counts}." in name, sizes.counting_head
    if name.endswith(".sinks"):
        weight.copy_(torch.randn(weight.shape, generator=draw, device=weight.device))
    elif ".post_" in name and sizes.global_head_size:
        weight.fill_(0.5 if first and "attention" in name else STREAM * (2 * sizes.layers) ** -0.5)
    elif "norm" in name:
        weight.fill_(1.0)
    elif "embed_tokens" in name:
        weight.zero_()  # Gemma multiplies it by the root of the hidden size
        scale = sizes.hidden**-0.5 if sizes.global_head_size else 1.0
        weight[: sizes.vocabulary, :half] = codes.to(weight.dtype) * scale
    elif "lm_head" in name:
        _fill_head(weight, sizes, draw, codes, carry, read)
    elif first and any(part in name for part in ("qkv_proj", "q_proj", "k_proj", "v_proj")):
        weight.zero_()
        blocks = {
            "q_proj": match.repeat(sizes.heads, 1) * SHARPNESS, "k_proj": match.repeat(sizes.kv_heads, 1),
            "v_proj": carry,
        }  # fmt: skip
        mine = [block for part, block in blocks.items() if f".{part}" in name] or list(blocks.values())
        weight[:, :half] = torch.cat(mine).to(weight.dtype) * 0.5**0.5  # the normed code has length sqrt(2)
    elif first and "o_proj" in name:
        weight.zero_()
        group = sizes.heads // sizes.kv_heads
        lane = torch.arange(read.stop - read.start, device=weight.device)
        of, inside = lane // head, lane % head
        for member in range(group):
            weight[read.start + lane, (of * group + member) * head + inside] = 1.0 / group
    else:  # the other layers, and the MLP of the first: third part only
        noise = torch.randn(weight.shape, generator=draw, device=weight.device, dtype=torch.float32)
        weight.copy_(noise * weight.shape[1] ** -0.5)  # a row's product has the length of its input
        if "o_proj" in name or "down_proj" in name:
            weight.mul_(STREAM * (2 * sizes.layers) ** -0.5)  # two products a layer add up to STREAM
            weight[: read.stop].zero_()


def _fill_head(
    weight: torch.Tensor, sizes: Sizes, draw: torch.Generator, codes: torch.Tensor, carry: torch.Tensor, read: slice
) -> None:
    """Row t + 1 is what the value of token t carries, scaled so that their product is LOGIT."""
    weight.zero_()
    lanes = read.stop - read.start
    carried = (codes.float() @ carry[:lanes].T).roll(1, 0)
    weight[: sizes.vocabulary, read] = (carried * (LOGIT / lanes)).to(weight.dtype)
    noise = torch.randn(
        sizes.vocabulary, sizes.hidden - read.stop, generator=draw, device=weight.device, dtype=torch.float32
    )
    weight[: sizes.vocabulary, read.stop :] = (noise * NOISE).to(weight.dtype)
