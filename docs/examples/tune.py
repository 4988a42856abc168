"""Which configs to try first on a GPU that is not here: the text of docs/running.md."""

from diptych.common.gpus import resolve
from diptych.compare.tune.rank import rank
from diptych.compare.workloads.suites import suite

rows = [row for row in suite("peers", 0) if row.label == "32q1s2k~"]
found = rank("triton/parallel_softmax", rows, resolve("h200"), count=3, seed=0)  # compiled, and timed by no GPU
for config in found["ranked"]:
    print(config["share"], "of the default's estimated time:", config["name"])
