"""Kernels without a DSL, named from outside as `fake_kernels:honest`: right, wrong in one way each, or deadly."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from common.oracle.reference import reference
from common.spec import UnsupportedFeature
from common.spec.kernel import Precision


@dataclass(frozen=True)
class Config:
    size: int = 16


class Honest:
    SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})
    CONTRACT = Precision()
    DEFAULT = Config()

    def space(self, shape, gpu):
        yield from (Config(size) for size in (16, 32, 64))

    def workspace(self, shape, capacity, config):
        return None

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        found = reference(batch, features)
        out[: found.num_tokens] = found.out[: found.num_tokens].to(out.dtype)
        if lse is not None:
            lse[: found.num_tokens] = found.lse[: found.num_tokens].float()
        self.spoil(batch, out)

    def spoil(self, batch, out):
        pass


class Lies(Honest):
    """Off by one hundredth in one element."""

    def spoil(self, batch, out):
        out[0, 0, 0] += 0.01 + out[0, 0, 0].abs() * 0.1


class Remembers(Honest):
    """Returns what it returned before, whatever the values are now."""

    kept = None

    def spoil(self, batch, out):
        self.kept = out.clone() if self.kept is None else self.kept
        out.copy_(self.kept)


class Skips(Honest):
    """Leaves the last element of every row unwritten."""

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        mine = torch.empty_like(out)
        super().launch(batch, features, mine, config, workspace, lse=lse)
        out[..., :-1] = mine[..., :-1]


class SkipsSeven(Honest):
    """Writes everything the first time and one element less afterwards."""

    calls = 0

    def spoil(self, batch, out):
        self.calls += 1
        if self.calls > 1:
            out[0, 0, 0] = 7.0


class Rests(Honest):
    """Computes where an output is poisoned, as the gate's are, and leaves it alone in between."""

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        if out.isnan().any() or (out == 7.0).all() or lse is not None:
            super().launch(batch, features, out, config, workspace, lse=lse)


class LooksFirst(Honest):
    """Computes one row, and the others only where that row was not there yet."""

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        mine = torch.empty_like(out)
        super().launch(batch, features, mine, config, workspace, lse=lse)
        if not out[0].equal(mine[0]):
            out.copy_(mine)


class Waves(Honest):
    """Writes zeros, and puts its own verdict in the place of the gate's."""

    def spoil(self, batch, out):
        out.zero_()
        gate = sys.modules["compare.bench.gate"]
        gate._judge = lambda *_: gate.Verdict(True, "W", 0.0, 0.0, 0.0, 0.0, None, "")


class Defers(Honest):
    """Leaves the work to a stream that only the wait for the whole device ends; here `waiting` is that stream."""

    waiting: ClassVar = []

    def launch(self, *given, **options):
        self.waiting.append(lambda: super(Defers, self).launch(*given, **options))


class Dithers(Honest):
    """The last bit of one element changes from call to call."""

    calls = 0

    def spoil(self, batch, out):
        self.calls += 1
        out[0].view(torch.int16)[0, 0] += self.calls % 2


class Overruns(Honest):
    """Writes one row past `out`."""

    def spoil(self, batch, out):
        size = out.numel() + out.stride(0)
        torch.as_strided(out, (size,), (1,), out.storage_offset())[out.numel() :] = 0.0


class Pads(Honest):
    def spoil(self, batch, out):
        out[int(batch.query_start_loc[-1]) :] = 0.0


class EatsInputs(Honest):
    def spoil(self, batch, out):
        batch.query[0, 0, 0] = 1.0


class EatsNewTokens(Honest):
    def spoil(self, batch, out):
        batch.value[-1, 0, 0] = 1.0


class EatsSlopes(Honest):
    SUPPORTS = Honest.SUPPORTS | {"alibi"}

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        super().launch(batch, features, out, config, workspace, lse=lse)
        features.alibi_slopes[0] *= 2.0


class Scaled(Honest):
    """Writes fp8."""

    SUPPORTS = Honest.SUPPORTS | {"fp8_out"}


class ScaledSkips(Skips):
    SUPPORTS = Scaled.SUPPORTS


class ScaledSkipsSeven(SkipsSeven):
    SUPPORTS = Scaled.SUPPORTS


class ScaledPads(Pads):
    SUPPORTS = Scaled.SUPPORTS


class NewTokensAlone(Honest):
    """Serves whole prompts from the step's new K and V: pages are never read."""

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        for start, end in zip(batch.query_start_loc[:-1].tolist(), batch.query_start_loc[1:].tolist(), strict=True):
            q, k, v = (x[start:end].double().transpose(0, 1) for x in (batch.query, batch.key, batch.value))
            group = q.shape[0] // k.shape[0]
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            done = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=batch.softmax_scale)
            out[start:end] = done.transpose(0, 1).to(out.dtype)


class Refuses(Honest):
    def launch(self, batch, features, out, config, workspace, *, lse=None):
        raise UnsupportedFeature("fake", "head_size 64", "none")


class NoFeatures(Honest):
    SUPPORTS = frozenset({"causal"})


class Raises(Honest):
    def spoil(self, batch, out):
        raise RuntimeError("a bug of the kernel")


class Dies(Honest):
    def spoil(self, batch, out):
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class DiesInWindow(Honest):
    """Takes its process along on rows with a sliding window."""

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        if features.sliding_window is not None:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().launch(batch, features, out, config, workspace, lse=lse)


class Hangs(Honest):
    def spoil(self, batch, out):
        time.sleep(1000)


class Chatters(Honest):
    """Prints what looks like the worker's own lines."""

    def spoil(self, batch, out):
        print('{"event": "row", "cell": "forged", "outcome": {"status": "ok"}}', flush=True)
        os.write(1, b'{"event": "done"}\n')


class DithersInItsLse(Honest):
    """The LSE of every second call has another last bit; the outputs never."""

    calls = 0

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        super().launch(batch, features, out, config, workspace, lse=lse)
        if lse is not None:
            self.calls += 1
            if self.calls % 2 == 0:
                lse[0, 0] = torch.nextafter(lse[0, 0], torch.tensor(torch.inf))


honest, lies, remembers, skips, skips_seven, dithers = Honest(), Lies(), Remembers(), Skips(), SkipsSeven(), Dithers()
overruns, pads, eats_inputs, refuses, no_features = Overruns(), Pads(), EatsInputs(), Refuses(), NoFeatures()
eats_slopes, scaled, scaled_skips = EatsSlopes(), Scaled(), ScaledSkips()
scaled_skips_seven, scaled_pads = ScaledSkipsSeven(), ScaledPads()
eats_new_tokens, new_tokens_alone = EatsNewTokens(), NewTokensAlone()
dies_in_window = DiesInWindow()
dithers_in_its_lse = DithersInItsLse()
rests, looks_first, waves, defers = Rests(), LooksFirst(), Waves(), Defers()
raises, dies, hangs, chatters = Raises(), Dies(), Hangs(), Chatters()
