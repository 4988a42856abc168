"""A model of transformers with our attention: the text of docs/engines.md. Needs transformers."""

from diptych.common.engines.transformers import register

register()  # register(paged=True): continuous batching too, in the place of "paged|eager"

import torch  # noqa: E402, after the registration, which says where kernels are interpreted
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

config = LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip
model = LlamaForCausalLM._from_config(config, attn_implementation="diptych")  # or from_pretrained(..., the same)
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False))
