import json

import pytest

from compare.record.noise import Noise, NotNoise, carry, kept, read

FLOOR = Noise("h200", "graph-cold-interleaved/2", "triton/q_block", 3, 0.002, 0.006, rows=({"workload": "q1s2k"},))


def test_a_floor_is_read_as_it_was_written(tmp_path):
    FLOOR.write(tmp_path / "new" / "noise.json")
    assert read(tmp_path / "new" / "noise.json") == FLOOR


@pytest.mark.parametrize(
    ("change", "named"),
    [({"within": -0.1}, "within"), ({"between": None}, "between"), ({"schema": 2}, "schema"), ({"what": 1}, "what")],
    ids=str,
)
def test_what_is_no_floor_is_refused_by_file_and_field(tmp_path, change, named):
    FLOOR.write(tmp_path / "noise.json")
    plain = json.loads((tmp_path / "noise.json").read_text()) | change
    (tmp_path / "noise.json").write_text(json.dumps(plain))
    with pytest.raises(NotNoise, match=f"noise.json.*{named}"):
        read(tmp_path / "noise.json")


@pytest.mark.parametrize("text", ["", "[]", "3", '{"gpu": "h200"}', "\x00"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "noise.json").write_text(text)
    with pytest.raises(NotNoise):
        read(tmp_path / "noise.json")


def test_a_run_takes_the_floor_of_its_gpu_and_contract_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    carry(tmp_path / "run", "h200", FLOOR.contract)
    FLOOR.write(kept("h200"))
    for gpu, contract in (("mi300", FLOOR.contract), ("h200", "host-cold-interleaved/2")):
        carry(tmp_path / "run", gpu, contract)
    kept("b200").write_text("no floor")
    carry(tmp_path / "run", "b200", FLOOR.contract)
    assert not (tmp_path / "run" / "noise.json").exists()
    carry(tmp_path / "run", "h200", FLOOR.contract)
    assert read(tmp_path / "run" / "noise.json") == FLOOR
