"""The steps of a serving trace as batches, each checked and, on a GPU, timed: the text of docs/running.md."""

from pathlib import Path

from diptych.compare.__main__ import main

requests = Path("results/example-trace.csv")  # the form of Microsoft's AzurePublicDataset
requests.parent.mkdir(exist_ok=True)
requests.write_text("""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,37,4
2023-11-16 18:15:46.6951690,21,3
2023-11-16 18:15:46.7000000,16,2
""")
asked = (
    f"run --trace {requests}:batches=2 --shape 4:2:32 --kernels triton/auto,baseline/sdpa --out results/example-trace"
)
raise SystemExit(main(asked.split()))
