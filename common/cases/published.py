"""Sizes in use: the attention of public models, and the batches and pages of engines. This file holds only data.

Users meet these sizes first, so a kernel must be right at each of them.
"""

from typing import NamedTuple


class Model(NamedTuple):
    """One kind of attention layer of a model.

    heads: of the query, and of K and V. window, chunk: in keys. value_size: lanes of V where they differ from K's.
    sinks: whether each head has one.
    """

    name: str
    heads: tuple[int, int]
    head_size: int
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    value_size: int | None = None
    sinks: bool = False


MODELS: tuple[Model, ...] = (
    Model("GPT-2", (12, 12), 64),
    Model("GPT-2 XL", (25, 25), 64),
    Model("OPT 2.7B", (32, 32), 80),
    Model("OPT 66B", (72, 72), 128),
    Model("GPT-NeoX 20B", (64, 64), 96),
    Model("GPT-J 6B", (16, 16), 256),
    Model("BLOOM 176B", (112, 112), 128),
    Model("Falcon 7B", (71, 1), 64),
    Model("Falcon 40B", (128, 8), 64),
    Model("Falcon 180B", (232, 8), 64),
    Model("StarCoder", (48, 1), 128),
    Model("StarCoder2 3B", (24, 2), 128, window=4096),
    Model("StarCoder2 7B", (36, 4), 128, window=4096),
    Model("Granite 20B code", (48, 1), 128),
    Model("MPT 30B", (64, 64), 112),
    Model("Llama 1B", (32, 8), 64),
    Model("Llama 3B", (24, 8), 128),
    Model("Llama 7B", (32, 32), 128),
    Model("Llama 8B", (32, 8), 128),
    Model("Llama 13B", (40, 40), 128),
    Model("Llama 70B", (64, 8), 128),
    Model("Llama 405B", (128, 8), 128),
    Model("Llama 4", (40, 8), 128, chunk=8192),
    Model("Mistral 7B", (32, 8), 128, window=4096),
    Model("Mistral Large", (96, 8), 128),
    Model("Ministral 8B", (32, 8), 128, window=32768),
    Model("Mixtral 8x22B", (48, 8), 128),
    Model("Command R", (64, 64), 128),
    Model("Command A", (96, 8), 128, window=4096),
    Model("DBRX", (48, 8), 128),
    Model("Grok 1", (48, 8), 128, softcap=30.0),
    Model("Phi 1.5", (32, 32), 64),
    Model("Phi 2", (32, 32), 80),
    Model("Phi 3 mini", (32, 32), 96, window=2047),
    Model("Phi 3 medium", (40, 10), 128, window=131072),
    Model("Phi 4", (40, 10), 128),
    Model("Phi 4 mini", (24, 8), 128),
    Model("Qwen 2 0.5B", (14, 2), 64),
    Model("Qwen 2 1.5B", (12, 2), 128),
    Model("Qwen 2.5 3B", (16, 2), 128),
    Model("Qwen 2 7B", (28, 4), 128),
    Model("Qwen 2.5 14B", (40, 8), 128),
    Model("Qwen 3 0.6B", (16, 8), 128),
    Model("Qwen 3 30B A3B", (32, 4), 128),
    Model("Qwen 3 235B A22B", (64, 4), 128),
    Model("Qwen 3 Next", (16, 2), 256),
    Model("Gemma 2B", (8, 1), 256),
    Model("Gemma 7B", (16, 16), 256),
    Model("Gemma 2 2B", (8, 4), 256, window=4096, softcap=50.0),
    Model("Gemma 2 27B", (32, 16), 128, window=4096, softcap=50.0),
    Model("Gemma 3 1B", (4, 1), 256, window=512),
    Model("Gemma 3 27B", (32, 16), 128, window=1024),
    Model("gpt-oss", (64, 8), 64, window=128, sinks=True),
    Model("GLM 4 9B", (32, 2), 128),
    Model("GLM 4.5", (96, 8), 128),
    Model("MiniMax M1", (64, 8), 128),
    Model("Nemotron 4 15B", (48, 8), 128),
    Model("Nemotron 4 340B", (96, 8), 192),
    Model("Jamba", (32, 8), 128),
    Model("OLMo 2 32B", (40, 8), 128),
    Model("SmolLM 135M", (9, 3), 64),
    Model("SmolLM 360M", (15, 5), 64),
    Model("StableLM 1.6B", (32, 32), 64),
    Model("Persimmon 8B", (64, 64), 64),
    Model("Baichuan 13B", (40, 40), 128),
    Model("Yi 34B", (56, 8), 128),
    Model("InternLM 20B", (48, 8), 128),
    Model("DeepSeek V3, unfolded", (128, 128), 192, value_size=128),
    Model("DeepSeek V2 Lite, unfolded", (16, 16), 192, value_size=128),
    Model("Whisper large", (20, 20), 64),
    Model("BERT large", (16, 16), 64),
)  # fmt: skip

# Batch sizes that an engine captures in graphs and pads other batches to.
GRAPHS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
# Tokens in a page: powers of two, and multiples of 16 from hybrid models, whose pages are as large as a state.
PAGES = (16, 32, 64, 128, 256, 400, 528, 544, 560, 672, 784, 800, 1056, 1072, 1152, 1600, 2096)
# Keys of a tile or of a segment in published kernels.
TILES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 256, 512)


def ratios() -> tuple[int, ...]:
    """Query heads per KV head."""
    return tuple(sorted({query // kv for query, kv in (model.heads for model in MODELS)}))


def kv_heads() -> tuple[int, ...]:
    """KV heads of a whole model, and of each part of it on 2 to 16 GPUs."""
    found = {model.heads[1] for model in MODELS}
    return tuple(sorted({kv // parts for kv in found for parts in (1, 2, 4, 8, 16) if kv % parts == 0}))
