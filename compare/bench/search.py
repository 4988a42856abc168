"""How good is the default? Random configs of a kernel's own space, gated and screened beside it in the same process.

The winner of the screening is timed once more against the default, interleaved: a screening's best is partly luck.
"""

from __future__ import annotations

import time
from typing import Any

from compare.bench import gate, timing
from compare.bench.arena import Arena
from compare.bench.subject import Subject, device_is_sick
from compare.competitors import registry
from compare.record.records import Search, Status

SCREENING_S = 20.0  # per kernel and row; configs that it does not reach are not counted
SAMPLES = 3
HOPELESS, HOST_US = 3.0, 200.0  # a first launch above 3 x the default + what the host may add is not screened
DUEL_S = 0.5


class Candidate:
    """A config of the space that passed the gate, with its timer."""

    def __init__(self, subject: Subject, clock: Any, default_us: float) -> None:
        arena = subject.arena
        call_us = timing.first_launch_us(subject.launch, len(arena.batches))
        if call_us > HOPELESS * default_us + HOST_US:
            raise gate.Rejected(Status.TIMEOUT, f"{call_us:.0f} us, above {HOPELESS:g} x the default")
        parts = timing.partition(len(arena.batches), call_us)
        self.subject = subject
        self.runner = timing.captured(subject, parts, clock)
        sets = sorted({number for part in parts for number in part})
        gate.once(arena, self.runner.run, sets, subject.kernel.CONTRACT)
        taken = [self.runner.sample(i % len(parts)) for i in range(SAMPLES + 1)]
        self.us = timing.quantile(taken[1:], 0.5)  # the first replay uploads the graph


def screen(
    default: Subject, arena: Arena, gpu: Any, clock: Any, default_us: float, count: int, seed: int
) -> tuple[int, int, Candidate | None]:
    """(configs tried, configs that passed, the fastest). Raises RuntimeError naming the config that lost the device."""
    tried, passed, best = 0, 0, None
    deadline = time.perf_counter() + SCREENING_S
    shape = arena.workload.shape
    for index, config in enumerate(registry.random_configs(default.kernel, shape, gpu, count, seed)):
        if time.perf_counter() > deadline:
            break
        tried += 1
        try:
            subject = Subject(default.kernel_id, arena, gpu, config, f"random:{seed}:{index}")
            candidate = Candidate(subject, clock, default_us)
        except Exception as error:  # a config that does not compile, fit or pass is what the space may hold
            if device_is_sick(arena.device):
                raise RuntimeError(f"{config} lost the device: {error}") from error
            continue
        passed += 1
        if best is None or candidate.us < best.us:
            best = candidate
    return tried, passed, best


def search(
    default: Subject,
    runner: timing.Runner,
    arena: Arena,
    gpu: Any,
    clock: Any,
    default_us: float,
    count: int,
    seed: int,
) -> Search | None:
    """The default against the best of `count` random configs; None where the kernel has no space or none passed."""
    tried, passed, best = screen(default, arena, gpu, clock, default_us, count, seed)
    if best is None:
        return None
    ours, theirs = timing.Track("default", runner, []), timing.Track("random", best.runner, [])
    timing.interleave([ours, theirs], DUEL_S)
    default_again, best_us = (timing.quantile(track.samples, 0.5) for track in (ours, theirs))
    return Search(
        configs=tried,
        gated=passed,
        best_random_us=best_us,
        best_random_config=registry.config_dict(best.subject.config) or {},
        default_share=min(best_us, default_again) / default_again,
    )
