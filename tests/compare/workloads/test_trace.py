import pytest

from common.spec import AttentionShape
from compare.workloads import Ask, GrammarError, trace
from compare.workloads.trace import Request, Rule, Step, keep, read, simulate

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:15:46.6805900,374,44"


def write(tmp_path, *lines, end="\r\n"):
    path = tmp_path / "trace.csv"
    path.write_bytes(end.join(lines).encode())
    return path


def test_reads_crlf_seven_decimals_and_a_missing_last_newline(tmp_path):
    path = write(tmp_path, HEADER, GOOD, "2023-11-16 18:15:50.9951690,396,109")
    first, second = read(path)
    assert (first.arrival, first.prompt, first.generated) == (0.0, 374, 44)
    assert second.arrival == pytest.approx(4.314579, abs=1e-6)


def test_a_time_stamp_with_an_offset_is_that_moment(tmp_path):
    path = write(tmp_path, HEADER, "2023-11-16 18:15:46+01:00,3,4", "2023-11-16 17:15:47,5,6")
    assert [request.arrival for request in read(path)] == [0.0, 1.0]


def test_requests_come_in_order_of_arrival(tmp_path):
    path = write(tmp_path, HEADER, GOOD, "2023-11-16 18:15:40,1,1")
    assert [request.prompt for request in read(path)] == [1, 374]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["TIMESTAMP,ContextTokens", "2023-11-16 18:15:46.68,374"], "line 1: found TIMESTAMP,ContextTokens"),
        ([], "line 1"),
        ([HEADER], "line 1: found no request"),
        ([HEADER, GOOD, "2023-11-16 18:15:47,-3,4"], "line 3: found -3 and 4"),
        ([HEADER, GOOD, GOOD, "2023-11-16 18:15:47,3,-4"], "line 4: found 3 and -4"),
        ([HEADER, GOOD, "2023-11-16 18:15:47,3,1048577"], "line 3: found 3 and 1048577"),  # a step each
        ([HEADER, "2023-11-16 18:15:47,99999999999999999999999,3"], "line 2: found 9999"),
        ([HEADER, GOOD, "2023-11-16 18:15:47,3"], "line 3"),
        ([HEADER, "yesterday,3,4"], "line 2: found yesterday,3,4"),
        ([HEADER, "2023-11-16 18:15:47,3.5,4"], "line 2"),
    ],
    ids=[
        "column",
        "empty",
        "header-only",
        "negative-prompt",
        "negative-generated",
        "endless",
        "huge",
        "short",
        "time",
        "fraction",
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path, lines, named):
    with pytest.raises(GrammarError, match=named):
        read(write(tmp_path, *lines))


@pytest.mark.parametrize("lines", [["\x1b[2J\x07" + "x" * 500], [HEADER, "\x1b[2J\r" + "x" * 500 + ",1,2"]])
def test_what_is_said_of_a_bad_line_moves_no_cursor(tmp_path, lines):
    with pytest.raises(GrammarError) as refusal:
        read(write(tmp_path, *lines))
    said = str(refusal.value).removeprefix(str(tmp_path))
    assert said.isprintable() and len(said) < 200 and "\\x1b[2J" in said


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for line in (b"\xff\xfe,1,2\n", b'"' + b"x" * 200_000 + b'",1,2\n'):
        path.write_bytes(header + line)
        with pytest.raises(GrammarError, match=r"trace\.csv, line 2: found"):
            trace.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(GrammarError, match=r"nowhere\.csv"):
        read(tmp_path / "nowhere.csv")


def lens(requests, **rule):
    return [step.lens for step in simulate(requests, Rule(**rule))]


def test_one_request_is_a_prompt_and_a_step_for_each_further_token():
    assert lens([Request(0.0, 5, 3)]) == [((5, 5),), ((1, 6),), ((1, 7),)]


def test_a_long_prompt_comes_in_chunks_beside_decodes_which_go_first():
    requests = [Request(0.0, 2, 5), Request(0.001, 10, 1)]
    assert lens(requests, max_tokens=5)[:4] == [((2, 2),), ((1, 3), (4, 4)), ((1, 4), (4, 8)), ((1, 5), (2, 10))]


def test_no_step_passes_its_limits():
    requests = [Request(0.0, 50, 4) for _ in range(30)]
    for step in simulate(requests, Rule(max_seqs=7, max_tokens=64)):
        assert len(step.lens) <= 7
        assert sum(query_len for query_len, _ in step.lens) <= 64


def test_every_token_is_served_once():
    requests = [Request(0.1 * i, 3 + 7 * i % 40, 1 + i % 5) for i in range(40)]
    served = sum(q for step in simulate(requests, Rule(max_seqs=5, max_tokens=16)) for q, _ in step.lens)
    assert served == sum(r.prompt + r.generated - 1 for r in requests)


def test_a_step_lasts_as_assumed_and_the_clock_waits_for_arrivals():
    steps = list(simulate([Request(0.0, 100, 2), Request(9.0, 1, 1)], Rule(step_ms=10.0, token_us=1000.0)))
    assert [round(step.start, 6) for step in steps] == [0.0, 0.11, 9.0]


def test_steps_are_kept_at_even_quantiles():
    steps = [Step(0.0, ((1, n),)) for n in range(1, 101)]
    assert [step.kv_tokens for step in keep(reversed(steps), 4)] == [13, 38, 63, 88]
    assert len(keep(steps[:3], 16)) == 3


def test_rows_and_their_assumptions(tmp_path):
    path = write(tmp_path, HEADER, GOOD, "2023-11-16 18:15:46.9,40,9")
    rows, notes = trace.workloads(str(path), Rule(batches=5), AttentionShape(), Ask(), seed=0)
    assert len(rows) == 5 and len({row.label for row in rows}) == 5
    totals = [row.stats.total_seq_len for row in rows]
    assert totals == sorted(totals)
    assert "2 requests of trace.csv" in notes[0] and "5 ms + 25 us" in notes[1]
