"""A run goes into flashinfer-bench's layout and comes back: the text of docs/trace-exchange.md."""

from diptych.compare.__main__ import main

run, folder = "results/example-run", "results/example-exchange"
row = "run --workload 2q1s20 --shape 4:2:32 --kernels triton/auto --quiet --out"
ran = main([*row.split(), run])
given = main(["exchange", "export", run, folder])  # for flashinfer-bench's runner
judged = main(["exchange", "import", folder])  # as a folder of its own would be
raise SystemExit(max(ran, given, judged))
