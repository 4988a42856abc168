"""Rows with samples whose truth is known, for tests of what reads samples: verdicts, differences, merged runs."""

import dataclasses

import numpy as np

from synthetic_run import failed, timed, workload

DECODE = workload("32q1s2k~", "decode", 32, 32, 49000)
PREFILL = workload("q8k", "prefill", 1, 8192, 8192)
MIXED = dataclasses.replace(workload("16q1s2k_16q512s1536", "mixed", 32, 8208, 57344), num_decodes=16)
SPEC = dataclasses.replace(workload("8q4s4k", "speculative", 8, 32, 32768), num_decodes=0)
LOADS = (DECODE, PREFILL, MIXED, SPEC)


def rows(load, speeds, seed=0, processes=3, rounds=32, us=100.0, within=0.005, between=0.0, **changes):
    """One row per kernel and process. speeds: a kernel's time over `us`; None: it crashed. A drift is common to all."""
    generator = np.random.default_rng(seed)
    found = []
    for process in range(processes):
        drift = 0.03 * np.sin(np.arange(rounds) / 3) + generator.normal(0, 0.01)
        for kernel, factor in speeds.items():
            if factor is None:
                found.append(dataclasses.replace(failed(load, kernel), process=process, **changes))
                continue
            offset = generator.normal(0, between)
            samples = us * factor * np.exp(drift + offset + generator.normal(0, within, rounds))
            found.append(sampled(load, kernel, samples, process, **changes))
    return found


def sampled(load, kernel, samples, process=0, **changes):
    row = timed(load, kernel, float(np.median(samples)))
    timing = dataclasses.replace(row.timing, samples_us=tuple(map(float, samples)), rounds=len(samples))
    return dataclasses.replace(row, timing=timing, process=process, **changes)
