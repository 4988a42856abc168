"""What Helion generated is found again by another process; no other file is believed, and none is half written."""

import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch

import children
from dsl_helion import kept
from dsl_helion.kept import Kept

HERE = Path(__file__).resolve().parent
SOURCE = """
class Jit:
    cache_key, hash = "Triton's", None

_helion_host = Jit()
_helion_alias = 1

def host(x):
    return 2 * x
"""


class Kernel:
    """What is asked of a helion.Kernel."""

    name = "host"
    fn = types.SimpleNamespace(__module__="somebody")
    signature = types.SimpleNamespace(parameters=("x", "f"))
    _compiler_seed_specialize_extra: dict = {}  # noqa: RUF012 - as Helion's

    @staticmethod
    def _base_specialization_key(args):
        return tuple(value.dtype for value in args if isinstance(value, torch.Tensor))


class Source:
    """One of torch's, which are told apart by what they are: these by which they are."""

    def __init__(self, **facts):
        self.__dict__.update(facts)


X = Source(local_name="x")
LANES = Source(base=X, prop=types.SimpleNamespace(name="SIZE"), idx=1)


class Bound:
    """A traced kernel whose code holds x.size(1), and a descriptor of x where it has descriptors."""

    _base_spec_key = ()
    env = types.SimpleNamespace(
        runtime_input_specializations={}, specialized_vars={"s1"}, specialized_strides=set(),
        shape_env=types.SimpleNamespace(var_to_sources={"s1": [LANES]}),
        tensor_descriptor_layout_guards={X: None},
    )  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "kept"))
    monkeypatch.setattr(kept, "target", lambda device: "a GPU")
    monkeypatch.setattr(kept, "_functions", {})
    return tmp_path / "kept"


def one(x=None, **words):
    return Kept(Kernel(), words, (torch.zeros(4, 8) if x is None else x, {}))


def keep(tmp_path, x=None, **words):
    """Keep the host function of SOURCE, as a process that ended would have."""
    path = tmp_path / "generated.py"
    path.write_text(SOURCE)
    namespace = {}
    exec(compile(SOURCE, str(path), "exec"), namespace)
    one(x, **words).keep(Bound(), namespace["host"])
    kept._functions.clear()


def test_what_was_kept_is_loaded_and_counted(place, tmp_path):
    assert one().load() is None
    keep(tmp_path)
    before = kept.counts["loaded"]
    assert one().load()(21) == 42 and one(torch.zeros(9, 8)).load()(1) == 2
    assert kept.counts["loaded"] == before + 1


def test_the_key_of_a_kernel_is_kept_beside_it(place, tmp_path):
    keep(tmp_path)
    there = one().load().__globals__
    assert there["_helion_host"].hash == "Triton's" and there["_helion_alias"] == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: one(torch.zeros(4, 9)),
        lambda: one(torch.zeros(4, 8, dtype=torch.int32)),
        lambda: one(torch.zeros(4)),
        lambda: one(num_warps=8),
    ],
    ids=["a size that the code holds", "dtype", "rank", "config"],
)
def test_other_arguments_and_configs_are_others(place, tmp_path, other):
    keep(tmp_path)
    assert other().load() is None


@pytest.mark.parametrize("x", [torch.zeros(40, 8), torch.zeros(4, 9)[:, :8], torch.zeros(33)[1:].view(4, 8)])
def test_with_descriptors_the_layout_counts_too(place, tmp_path, x):
    keep(tmp_path, descriptors=True)
    assert one(descriptors=True).load() and one(x, descriptors=True).load() is None


def test_what_no_descriptor_follows_from_is_one(place, tmp_path):
    """Sizes past a block, and strides of whole words: a server's prompts have others with each step."""
    keep(tmp_path, torch.zeros(300, 8), descriptors=True)
    assert (
        one(torch.zeros(9000, 8), descriptors=True).load() and one(torch.zeros(400, 16)[:, :8], descriptors=True).load()
    )


def test_counts_are_no_part_of_generated_code_and_strides_are(tmp_path, monkeypatch):
    """What Triton knows of a stride makes words of 16 bytes; of a count it would make a kernel for 1 and for 16."""
    arguments = "query, out_size_0, out_stride_0, num_seqs, page_rows, scale, _SIZE: tl.constexpr"
    path = tmp_path / "generated.py"
    path.write_text(f"@triton.jit\ndef _helion_host({arguments}):\n    pass\n\n@triton.jit\ndef add(x):\n    pass\n")
    written = []
    monkeypatch.setattr(kept.PyCodeCache, "load", lambda text: written.append(text) or types.SimpleNamespace(host=1))
    function = types.SimpleNamespace(__code__=types.SimpleNamespace(co_filename=str(path)), __name__="host")
    assert kept.for_any_counts(function, ("num_seqs",)) == 1
    (text,) = written
    assert text == path.read_text().replace("jit\ndef _", "jit(do_not_specialize=['out_size_0', 'num_seqs'])\ndef _")


def test_another_source_or_version_is_another(place, tmp_path, monkeypatch):
    keep(tmp_path)
    monkeypatch.setattr(kept, "_made_by", lambda: ("changed",))
    assert one().load() is None


def test_a_setting_of_helion_counts_but_for_where_its_files_lie(monkeypatch):
    made = kept._made_by.__wrapped__
    monkeypatch.setenv("HELION_CACHE_DIR", "a")
    here = made()
    monkeypatch.setenv("HELION_CACHE_DIR", "b")
    assert made() == here
    monkeypatch.setenv("HELION_DEBUG_DTYPE_ASSERTS", "1")
    assert made() != here


def test_what_generated_code_calls_is_part_of_what_made_it(monkeypatch):
    made, helper = kept._made_by.__wrapped__, kept.HELPERS[0]
    here = made()
    monkeypatch.setattr(kept, "HELPERS", (helper, "helion.runtime.gone"))
    one_of_two = made()
    monkeypatch.setattr(kept, "HELPERS", (helper,))
    assert made() == one_of_two != here


@pytest.mark.parametrize("kind", ["*.py", "*.json"])
@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda path: path.write_text(path.read_text() + "# more\n"), "hash"),
        (lambda path: path.write_text(path.read_text()[:-4]), "hash"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "utf-8"),
        (lambda path: path.write_text(""), "hash"),
        (lambda path: path.chmod(0o622), "somebody else"),
    ],
    ids=["changed", "cut short", "no text", "empty", "foreign"],
)
def test_a_file_that_is_not_as_it_was_written_is_ignored_with_a_word(place, tmp_path, kind, spoil, word):
    keep(tmp_path)
    spoil(next(place.glob(kind)))
    with pytest.warns(UserWarning, match=f"(?s){word}.*generated instead"):
        assert one().load() is None
    keep(tmp_path)  # and the next process that generates it mends it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one().load()(1) == 2


def test_a_kernel_whose_key_cannot_be_told_is_not_kept(place, tmp_path, monkeypatch):
    monkeypatch.setattr(Kernel, "_compiler_seed_specialize_extra", {(): ["something"]})
    keep(tmp_path)
    assert not place.exists()
    monkeypatch.setattr(Bound, "env", types.SimpleNamespace())
    monkeypatch.setattr(Kernel, "_compiler_seed_specialize_extra", {})
    with pytest.warns(UserWarning, match="keys are others"):
        keep(tmp_path)
    assert not place.exists()


def test_a_folder_that_cannot_be_written_costs_a_word_alone(place, tmp_path):
    place.write_text("a file")
    with pytest.warns(UserWarning, match="cannot be written"):
        keep(tmp_path)


def test_it_can_be_turned_off_and_interpreted_kernels_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, "0")
    assert kept.folder() is None
    monkeypatch.delenv(kept.FOLDER)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert kept.folder() == tmp_path / "diptych_helion"
    assert kept.target(torch.device("cpu")) == ""


def _many_writes(path):
    for number in range(200):
        kept.put_sealed(path, f"{number}\n" * 2000)


def test_writers_at_once_leave_a_whole_file(tmp_path):
    writers = [threading.Thread(target=_many_writes, args=(tmp_path / "a",)) for _ in "abc"]
    for writer in writers:
        writer.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(writer.is_alive() for writer in writers):
            kept._read(tmp_path / "a")
    assert kept._read(tmp_path / "a") == "199\n" * 2000
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_a_second_process_neither_traces_nor_generates(tmp_path):
    """And it launches the code that the first one launched, so that Triton's cache has all of it."""
    environment = children.compiling(HERE.parents[1], *sys.path, PYTHONWARNINGS="error::UserWarning:dsl_helion")
    environment[kept.FOLDER] = str(tmp_path)
    first, second = (children.answer([str(HERE / "kept_child.py")], environment) for _ in range(2))
    assert first["generated"] > 2 and "loaded" not in first
    assert second == {"loaded": first["generated"], "keys": first["keys"]}
