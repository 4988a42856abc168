"""A model served by vLLM with our attention: the text of docs/engines.md. Needs vLLM and its GPU."""

from diptych.common.engines.vllm import register

register()  # not needed where diptych is installed: vLLM then finds it by itself

from vllm import LLM, SamplingParams  # noqa: E402, after the registration

llm = LLM(model="meta-llama/Llama-3.2-1B", attention_backend="CUSTOM")
(said,) = llm.generate(["Paged attention is"], SamplingParams(max_tokens=16, temperature=0))
print(said.outputs[0].text)
