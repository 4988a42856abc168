"""What is kept of a launch is repeated with other pointers, or not kept at all; test_call_kept.py plants changes."""

import threading
import types
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from common.serving import tape as handle
from common.serving.tape import Launch, Tape, Wait


class Driver:
    """A compiled kernel that notes what it is launched with."""

    packed_metadata, function = "packed", "function"

    def __init__(self):
        self.seen = []

    def run(self, *args):
        self.seen.append(args)


def launch(driver, *args, constant=None, stream=5):
    return Launch(driver, (2, 1, 1), args, constant or (False,) * len(args), stream)


def tensors(count):
    return [torch.empty(8) for _ in range(count)]


def test_pointers_are_replaced_and_the_rest_is_kept():
    driver, (query, out, scratch) = Driver(), tensors(3)
    args = (query, 16, 0.5, None, (128, 1), out, scratch[2:])
    tape = Tape.of([launch(driver, *args), launch(driver, out)], [query, out, None, scratch], 5)
    tape.replay([160, 320, 0, 1000], 9)
    first, second = driver.seen
    assert first == (2, 1, 1, 9, "function", "packed", None, None, None, 160, 16, 0.5, None, (128, 1), 320, 1008)
    assert second[9:] == (320,)


def test_every_operand_of_a_tuple_is_replaced_however_deep_it_is():
    driver, (key_scale, value_scale, scratch) = Driver(), tensors(3)
    argument = (key_scale, (8, 1), (None, value_scale), ())
    Tape.of([launch(driver, argument)], [value_scale, key_scale, scratch], 5).replay([16, 48, 0], 1)
    assert driver.seen[0][9:] == ((48, (8, 1), (None, 16), ()),)


def test_pointers_into_scratch_and_into_a_steps_memory_are_kept_as_distances():
    driver, (query, scratch, memory) = Driver(), tensors(3)
    tape = Tape.of([launch(driver, memory[2:], scratch[1:], memory)], [query, scratch, memory], 5, regions=2)
    tape.replay([0, 1000, 2000], 1)
    assert driver.seen[0][9:] == (2008, 1004, 2000)
    assert Tape.of([launch(driver, scratch[1:])], [query, scratch, memory], 5) is None


def test_a_compile_time_argument_may_be_anything():
    driver, marker = Driver(), object()
    Tape.of([launch(driver, marker, constant=(True,))], [None], 5).replay([0], 1)
    assert driver.seen[0][9:] == (marker,)


@dataclass
class Descriptor:
    """As much of Triton's TensorDescriptor as is looked at."""

    base: object
    shape: tuple
    block_shape: tuple


def test_a_descriptor_is_made_anew_around_the_new_pointer():
    driver, (key, scratch) = Driver(), tensors(2)
    described = [Descriptor(key, (2, 4), (1, 4)), Descriptor(scratch[4:], (4,), (4,))]
    tape = Tape.of([launch(driver, *described, key)], [key, None, scratch], 5)
    for pointers in ([160, 0, 1000], [320, 0, 2000]):
        tape.replay(pointers, 1)
        first, second, pointer = driver.seen[-1][9:]
        assert (first.base.data_ptr(), first.shape, first.block_shape) == (pointers[0], (2, 4), (1, 4))
        assert (second.base.data_ptr(), pointer) == (pointers[2] + 16, pointers[0])
    assert described[0].base is key  # what was recorded is nobody's to change
    assert Tape.of([launch(driver, Descriptor(torch.empty(4), (4,), (4,)))], [key, None, scratch], 5) is None


class Stream:
    def __init__(self, raw, seen):
        self.cuda_stream, self._seen = raw, seen

    def wait_stream(self, other):
        self._seen.append((self.cuda_stream, "waits for", other.cuda_stream))


def test_a_second_stream_is_the_one_beside_the_current_and_waits_and_is_waited_for(monkeypatch):
    driver, (query, scratch) = Driver(), tensors(2)
    main, side, later, beside = (Stream(raw, driver.seen) for raw in (5, 6, 9, 10))
    entries = [Wait(side, main), launch(driver, query, stream=6), launch(driver, query), Wait(main, side)]
    monkeypatch.setattr(handle, "current", lambda: later)
    monkeypatch.setattr(handle, "side_of", {later: beside}.get)
    tape = Tape.of(entries, [query, scratch], 5)
    tape.replay([64, 0], 9)
    order = [entry if entry[1] == "waits for" else f"on {entry[3]}" for entry in driver.seen]
    assert order == [(10, "waits for", 9), "on 10", "on 9", (9, "waits for", 10)]


@pytest.mark.parametrize("missing", [0, 3], ids=["begins-unordered", "is-not-waited-for"])
def test_a_second_stream_out_of_order_has_no_tape(missing):
    driver, (query, scratch) = Driver(), tensors(2)
    main, side, third = (Stream(raw, []) for raw in (5, 6, 7))
    entries = [Wait(side, main), launch(driver, query, stream=6), launch(driver, query), Wait(main, side)]
    assert Tape.of(entries, [query, scratch], 5) is not None
    assert Tape.of(entries[:missing] + entries[missing + 1 :], [query, scratch], 5) is None
    assert Tape.of([*entries, Wait(third, side)], [query, scratch], 5) is None


def test_which_streams_wait_is_heard_in_order_and_of_this_thread_alone(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: waited.append(other), raising=False)
    monkeypatch.setattr(handle, "has_jit", lambda device: True)
    stream = object()
    with handle.recorded(torch.device("cpu")) as launches:
        torch.cuda.Stream.wait_stream("first", stream)
        thread = threading.Thread(target=torch.cuda.Stream.wait_stream, args=("not mine", stream))
        thread.start()
        thread.join()
    torch.cuda.Stream.wait_stream("after", stream)
    assert launches == [Wait("first", stream)] and len(waited) == 3


OPAQUE = {
    "object": lambda q, s: [launch(Driver(), object())],
    "nobody's-tensor": lambda q, s: [launch(Driver(), torch.empty(4))],
    "inside-an-input": lambda q, s: [launch(Driver(), q[1:])],
    "not-compiled": lambda q, s: [launch(None, q)],
    "another-stream": lambda q, s: [launch(Driver(), q), launch(Driver(), q, stream=6)],
    "nobody's-in-a-tuple": lambda q, s: [launch(Driver(), (q, torch.empty(4)))],
    "object-in-a-tuple": lambda q, s: [launch(Driver(), (q, object()))],
    "nothing-launched": lambda q, s: [],
}


@pytest.mark.parametrize("case", OPAQUE)
def test_what_pointers_alone_cannot_repeat_has_no_tape(case):
    query, scratch = tensors(2)
    assert Tape.of(OPAQUE[case](query, scratch), [query, None, scratch], 5) is None


def test_one_tensor_in_two_places_has_no_tape():
    """K that is V: the next call of that signature may pass two."""
    (cache,) = tensors(1)
    assert Tape.of([launch(Driver(), cache)], [cache, cache, None], 5) is None


class CudaLauncher:
    """What triton 3.6 keeps behind a compiled kernel, and with `kernel_signature` 3.7."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, launch):
        self.launch = launch


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_on_nvidia_the_c_launcher_gets_its_own_order(version):
    seen = []
    launcher = CudaLauncher(partial(lambda *args: seen.append(args)))  # no Python function, as the real one
    if version == "3.7":
        launcher.arg_annotations, launcher.kernel_signature = "annotations", b"signature"
    compiled = types.SimpleNamespace(run=launcher, function="function", packed_metadata="packed")
    (query,) = tensors(1)
    Tape.of([launch(compiled, query, 3)], [query, None], 5).replay([64, 0], 9)
    head = (2, 1, 1, 9, "function", False, True)
    if version == "3.7":
        assert seen == [(*head, "packed", None, None, None, None, None, "annotations", b"signature", (64, 3))]
    else:
        assert seen == [(*head, None, None, "packed", None, None, None, 64, 3)]


class Compiling(CudaLauncher):
    """A launcher as Triton makes it, of a source and metadata."""

    def __init__(self, source, metadata):
        super().__init__(partial(lambda *args: metadata.append(args), source.signature))


def test_on_nvidia_the_launcher_gets_the_run_time_arguments_alone_and_tuples_opened():
    Compiling.__name__, (query, sinks, scratch) = "CudaLauncher", tensors(3)
    signature = {"q": "*bf16", "s": ("i32", "constexpr"), "f": ("constexpr", ("*fp32", "constexpr")), "B": "constexpr"}
    source = types.SimpleNamespace(signature=signature, constants={})
    seen = []
    own = Compiling(source, seen)
    compiled = types.SimpleNamespace(run=own, function="f", packed_metadata="p", src=source, metadata=seen)
    args = launch(compiled, query, (128, 1), (None, (sinks, 1)), 64, constant=(False, False, False, True))
    Tape.of([args], [query, sinks, scratch], 5).replay([160, 320, 0], 9)
    ((kinds, *passed),) = seen
    assert kinds == {0: "*bf16", 1: "i32", 2: "*fp32"}
    assert passed[13:] == [160, 128, 320]


def test_a_launcher_that_needs_scratch_is_called_as_triton_calls_it():
    seen = []

    class Needy(CudaLauncher):
        global_scratch_size = 128

        def __call__(self, *args):
            seen.append(args)

    Needy.__name__ = "CudaLauncher"
    compiled = types.SimpleNamespace(run=Needy(print), function="function", packed_metadata="packed")
    (query,) = tensors(1)
    Tape.of([launch(compiled, query)], [query, None], 5).replay([64, 0], 9)
    assert seen == [(2, 1, 1, 9, "function", "packed", None, None, None, 64)]


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profilers_hook_is_seen(monkeypatch, hook):
    triton = pytest.importorskip("triton")
    assert not handle.observed()
    chain = getattr(triton.knobs.runtime, hook)
    chain.add(print)
    try:
        assert handle.observed()
    finally:
        chain.remove(print)
    monkeypatch.setattr(triton.knobs.runtime, hook, print)  # as it was set before hooks had chains
    assert handle.observed()
