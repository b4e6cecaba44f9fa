"""The benchmark measures what it says and writes what it measured. No time is asserted."""

from __future__ import annotations

import json

import pytest

from kvpacket_rag.bench.ttft import markdown, measure, write_report
from kvpacket_rag.database import Database
from kvpacket_rag.errors import InputError


@pytest.fixture(scope="module")
def report(llama):
    return measure(llama, [256, 512, 100_000], repeats=2)


def test_every_length_has_a_row_and_lengths_beyond_the_window_are_named(report):
    assert [(row.context_tokens, row.packets) for row in report.rows] == [(256, 1), (512, 2)]
    assert report.skipped == (100_000,)


def test_ratios_are_of_the_same_run(report):
    for row in report.rows:
        assert 0 < row.full.low <= row.full.median <= row.full.high
        assert row.ram.low / row.limit.high <= row.ram_over_limit.median <= row.ram.high / row.limit.low


def test_the_report_is_written_as_json_and_markdown(report, tmp_path):
    shown = write_report(report, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"][1]["context_tokens"] == 512
    assert (tmp_path / "out" / "report.md").read_text().strip() == shown == markdown(report)
    assert "Left out, beyond the model's window: 100000." in shown


@pytest.mark.parametrize(("lengths", "repeats"), [([], 1), ([10], 1), ([9000], 1), ([256], 0)])
def test_lengths_and_repeats_that_cannot_be_measured_are_refused(llama, lengths, repeats):
    with pytest.raises(InputError):
        measure(llama, lengths, repeats=repeats)


def test_all_ways_choose_a_token_from_the_same_context(llama, tmp_path):
    from kvpacket_rag.bench import ttft

    database = Database(tmp_path / "store.db")
    ways = ttft._prepare(llama, 2, database).ways(2)
    ram, disk, limit = (int(ways[name]()) for name in ("ram", "disk", "limit"))
    assert ram == disk == limit
    assert int(ways["limit"]()) == limit
    database.close()
