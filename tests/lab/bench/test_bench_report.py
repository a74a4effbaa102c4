"""Tables, CSV and JSON of what was measured."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from lab.bench.made_up import record, sweep

from tianji_cli.errors import TianjiError
from tianji_cli.runs.results import print_header
from tianji_lab.bench.record import Record
from tianji_lab.bench.report import FIELDS, print_records, result_of

ENVIRONMENT = {"tianji": "0.1.0", "kernel": "Linux"}


def table(records: list[Record], capsys: pytest.CaptureFixture[str]) -> tuple[str, list[dict[str, str]]]:
    """Print records, and read them again: what they have in common, and cells by heading."""
    print_records(records)
    common, headings, *rows = capsys.readouterr().out.splitlines()
    names = headings.replace("  ", "\t").split("\t")
    names = [name.strip() for name in names if name.strip()]
    cells = [[cell.strip() for cell in row.replace("  ", "\t").split("\t") if cell.strip()] for row in rows]
    return common, [dict(zip(names, row, strict=True)) for row in cells]


def test_conditions_and_warnings_head_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_header(ENVIRONMENT, ["too busy"])
    assert capsys.readouterr().out == "# tianji: 0.1.0\n# kernel: Linux\n# WARNING: too busy\n"


def test_comm_shows_every_figure_in_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    common, (row,) = table([record(sample_time_s=0.001, refused=3)], capsys)
    assert row == {
        "backend": "shm",
        "KB": "512",
        "actors": "1",
        "sample s": "0.001",
        "collect s": "1.00",
        "spread": "10 %",
        "predicted s": "1.10",
        "off": "+10 %",
        "msgs/s": "10000",
        "MB/s": "5243",
        "T_sd us": "61.0",
        "T_rv us": "97.0",
        "p50 us": "310.0",
        "p95 us": "420.0",
        "p99 us": "990.0",
        "CPU s": "1.90",
        "refused": "3",
    }
    assert common.startswith("# 10000 messages a run, each verified, window 8, stored by copy")
    assert "actors sleep while they sample" in common


def test_columns_that_tell_nothing_of_any_row_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    common, (row,) = table([record(repeats=1)], capsys)
    assert not {"hosts", "sample s", "refused", "raw msgs/s", "of raw", "spread"} & row.keys()
    assert "one run each" in common
    _, (row,) = table([record(raw_msgs_per_s=12_500.0, raw_ratio=0.8)], capsys)
    assert (row["raw msgs/s"], row["of raw"]) == ("12500", "0.80")
    common, rows = table([record(), record(messages=100, hosts=2)], capsys)
    assert [row["hosts"] for row in rows] == ["1", "2"]
    print_records([])
    assert capsys.readouterr().out == ""
    assert common.startswith("# 100 to 10000 messages a run")


@pytest.mark.parametrize(
    ("experiment", "headings"),
    [
        ("latency", ["backend", "size", "p50 us", "p95 us", "p99 us", "spread", "msgs/s"]),
        ("bandwidth", ["backend", "size", "MB/s", "spread", "msgs/s", "CPU s"]),
        ("weights", ["backend", "size", "actors", "p50 ms", "p95 ms", "MB/s to all", "spread"]),
    ],
)
def test_other_experiments_show_their_own_figures(
    experiment: str, headings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, rows = table(sweep(experiment), capsys)
    assert list(rows[0]) == headings
    assert (rows[0]["size"], rows[-1]["size"]) == ("1 KB", "128 KB")


def test_numbers_end_below_one_another_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_records([record(msgs_per_s=99.0), record(msgs_per_s=123_456.0)])
    _, headings, low, high = capsys.readouterr().out.splitlines()
    end = headings.index("msgs/s") + len("msgs/s")
    assert low[:end].endswith("  99.0")
    assert high[:end].endswith(" 123456")


def test_a_terminal_too_narrow_for_the_numbers_gets_them_in_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_records([record()])
    assert capsys.readouterr().out.splitlines()[-1].startswith("shm")
    monkeypatch.setenv("COLUMNS", "200")
    print_records([record()])
    assert "│ shm" in capsys.readouterr().out


def test_files_hold_every_field_of_every_record(tmp_path: Path) -> None:
    out, records = tmp_path / "a" / "b", [record(mb_per_s=None), record(backend="shm+zmq")]
    result_of("figure-5a", ENVIRONMENT, records, ["noisy"]).write(out)
    assert {path.name for path in out.iterdir()} == {"figure-5a.csv", "figure-5a.json", "figure-5a.png"}
    found = json.loads((out / "figure-5a.json").read_text())
    assert (found["schema"], found["environment"], found["warnings"]) == (1, ENVIRONMENT, ["noisy"])
    assert [Record(**row) for row in found["rows"]] == records
    with (out / "figure-5a.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == FIELDS
    assert first["mb_per_s"] == "", "a missing figure is empty"
    assert (float(second["send_s"]), second["backend"]) == (61e-6, "shm+zmq")


def test_a_directory_that_cannot_be_made_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TianjiError, match=r"cannot write into .*file/out: Not a directory; --out DIR"):
        result_of("comm", ENVIRONMENT, [record()], []).write(tmp_path / "file" / "out")
