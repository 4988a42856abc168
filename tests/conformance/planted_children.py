"""A child for conformance_crew.py that computes nothing: what becomes of it is in the name of the case."""

import json
import os
import sys
import time


def serve(device, gpu):
    for line in sys.stdin:
        kernel, case, dtype = json.loads(line)
        if case == "dies":
            os._exit(7)
        if case == "hangs":
            time.sleep(60)
        cell = {"kernel": kernel, "case": case, "dtype": dtype, "outcome": "supported"}
        print(json.dumps({"cell": cell | {"pid": os.getpid(), "gpu": gpu}, "usable": case != "sick"}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
