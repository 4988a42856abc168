"""Two hundred damaged files: nothing raises, and whatever is read is a row exactly as it was written."""

import json
import random

import pytest

from compare.analysis.runs import RunData
from compare.record.records import latest
from compare.record.store import load
from synthetic_run import checked, failed, timed, workload

LOAD = workload("q1s512", "decode", 1, 1, 512)
RECORDS = [
    timed(LOAD, "triton/q_block", 12.5),
    timed(LOAD, "helion/q_block", 13.25),
    checked(LOAD, "triton/naive", 0.4),
    failed(LOAD, "helion/naive"),
    timed(LOAD, "baseline/flash_attn3", 11.0),
]
LINES = [record.to_json().encode() + b"\n" for record in RECORDS]
FOREIGN = [
    b'{"op": "matmul", "latency": 1.0}\n', b"[1, 2, 3]\n", b'"text"\n', b"null\n", b"kernel,us\ntriton,3\n",
    b"[" * 100_000 + b"\n", b'{"schema": 2, "run_id": NaN}\n', b'{"schema": 1e999}\n',
    b'{"schema": 1, "schema": 2}\n', b'{"schema": 2}\n', b"\x00" * 512 + b"\n", b"\xff\xfe\x00{}\n",
    b'{"schema": ' + b"9" * 5000 + b"}\n",
]  # fmt: skip


def cut(generator, data):
    return data[: generator.randrange(len(data))]


def flip(generator, data):
    """One to eight bits."""
    out = bytearray(data)
    for _ in range(generator.randint(1, 8)):
        out[generator.randrange(len(out))] ^= 1 << generator.randrange(8)
    return bytes(out)


def digit(generator, data):
    """A figure becomes another figure: nothing but the checksum can tell."""
    out = bytearray(data)
    at = generator.choice([i for i, byte in enumerate(out) if chr(byte).isdigit()])
    out[at] = ord("0") + (out[at] - ord("0") + generator.randint(1, 9)) % 10
    return bytes(out)


def remove(generator, data):
    at = generator.randrange(len(data))
    return data[:at] + data[at + generator.randint(1, 300) :]


def insert(generator, data):
    at = generator.randrange(len(data))
    return data[:at] + generator.randbytes(generator.randint(1, 300)) + data[at:]


def splice(generator, data):
    """The head of one line grown onto the tail of another, as two writers at once would leave it."""
    first, second = generator.sample(LINES, 2)
    return data + first[: generator.randrange(len(first))] + second[generator.randrange(len(second)) :]


def join(generator, data):
    ends = [i for i, byte in enumerate(data) if byte == 10]
    at = generator.choice(ends)
    return data[:at] + data[at + 1 :]


def foreign(generator, data):
    return generator.choice(FOREIGN) + data


def resealed(generator, data):
    """Another tool wrote the row again: the values may be right, but nobody knows."""
    return json.dumps(json.loads(LINES[0])).encode() + b"\n" + data


def zeros(generator, data):
    """What a file system may leave behind a power cut."""
    return cut(generator, data) + b"\x00" * generator.randint(1, 5000)


DAMAGE = (cut, flip, digit, remove, insert, splice, join, foreign, resealed, zeros)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_file_gives_rows_as_they_were_written_and_names_the_rest(tmp_path, damage):
    """Twenty files each."""
    for seed in range(20):
        generator = random.Random(seed)
        data = damage(generator, b"".join(LINES))
        path = tmp_path / f"{seed}.jsonl"
        path.write_bytes(data)
        loaded = load(path)
        assert all(record in RECORDS for record in loaded.records), f"seed {seed}: a row that nobody wrote"
        lines = [line for line in data.split(b"\n") if line.strip()]
        assert len(loaded.records) + len(loaded.skipped) == len(lines)
        assert bool(loaded.note) == bool(loaded.skipped)
        assert damage is not digit or loaded.skipped, f"seed {seed}: a changed digit is another result"
        assert RunData(tmp_path, {}, latest(loaded.records)).rows is not None


def test_the_note_names_five_lines_and_counts_the_rest(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_bytes(LINES[0] + b"".join(FOREIGN[:4]) * 2)
    note = load(path).note
    assert note.startswith("cells.jsonl: 8 lines left out") and "line 2: schema" in note and "and 3 more" in note


@pytest.mark.parametrize(
    ("field", "value"),
    [("kernel", 5), ("seconds", "3"), ("command", None), ("facts", [1]), ("process", True), ("gate", {"tier": "S"})],
)
def test_a_row_without_checksum_is_still_held_to_its_types(tmp_path, field, value):
    """Schema 1 had no checksums."""
    plain = json.loads(LINES[2]) | {"schema": 1, field: value}
    del plain["check"]
    (tmp_path / "cells.jsonl").write_text(json.dumps(plain) + "\n")
    (bad,) = load(tmp_path / "cells.jsonl").skipped
    assert field in bad.why or field == "gate"
