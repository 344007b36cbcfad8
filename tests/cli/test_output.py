"""What a command prints of labels, columns and file names: never a character that would act on a terminal."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.commands import SMALL
from equipoise.cli.failures import explain
from equipoise.cli.output import Output, PlainConsole, as_csv
from equipoise.cli.watching import Watch
from equipoise.plain import plain

ESC, RLO, CSI = "\x1b", "\u202e", "\x9b"
LABELS = ("=1+1", f"re{RLO}d", f"../{ESC}]0;x{CSI}2J", "-1")


def assert_plain(text: str) -> None:
    assert plain(text) == text


@pytest.fixture
def printed():
    file = io.StringIO()
    console = PlainConsole(file=file, width=60, highlight=False, force_terminal=True)
    return console, lambda: file.getvalue().replace(f"{ESC}[1m", "").replace(f"{ESC}[0m", "")


def test_every_part_of_a_table_or_a_panel_is_plain(printed):
    console, got = printed
    table = Table(f"na{CSI}me")
    table.add_row(f"a{ESC}[2Jb")
    console.print(Panel(table, title=Text(f"ti{RLO}tle")), Text(f"c{ESC}d\r", style="bold"), f"e{RLO}f")
    for words in ("na\\x9bme", "a\\x1b[2Jb", "ti\\u202etle", "c\\x1bd", "e\\u202ef"):
        assert words in got()
    assert_plain(got())


def test_output_for_people_and_for_programs(capsys):
    Output().facts({f"a{ESC}": f"b{RLO}"})
    assert_plain(capsys.readouterr().out)
    Output(json=True).result({"label": f"{CSI}{RLO}\n", "n": float("nan")})
    out = capsys.readouterr().out
    assert_plain(out)
    assert json.loads(out) == {"label": f"{CSI}{RLO}\n", "n": None}


def test_columns_of_numbers_stay_numbers():
    columns = {"=target": ["-x", "-1"], "p(a)": [-0.25, 1e-300]}
    assert as_csv(columns) == "'=target,p(a)\n'-x,-0.25\n-1,1e-300\n"


def test_names_of_files_are_plain_in_errors(equipoise, tmp_path):
    for name in (f"a{ESC}[31m{RLO}.csv", "\udcff.csv"):
        for options in ((), ("--json",)):
            result = equipoise("fit", name, *options)
            assert result.exit_code == 3
            assert_plain(result.stdout + result.stderr)
    (tmp_path / f"b{CSI}{RLO}.csv").write_text(f"x{RLO}{CSI},x{RLO}{CSI},y\n1,2,3\n4,5,6\n")
    result = equipoise("fit", f"b{CSI}{RLO}.csv")
    assert result.exit_code == 3
    assert "are both called" in result.stderr
    assert_plain(result.stderr)


def test_answers_with_hostile_labels(equipoise, tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(40) % len(LABELS)
    X = generator.normal(size=(40, 2)) + 10 * np.column_stack([y, -y])
    np.savez(tmp_path / "t.npz", x=X, y=np.array(LABELS)[y])
    fitted = equipoise("fit", "t.npz", *SMALL, "--out", "run")
    assert fitted.exit_code == 0, fitted.stderr
    assert_plain(fitted.stdout + fitted.stderr)
    page = (tmp_path / "run" / "report.html").read_text()
    assert ESC not in page
    told = equipoise("predict", "run", "t.npz")
    assert told.exit_code == 0, told.stderr
    assert_plain(told.stdout + told.stderr)
    assert equipoise("predict", "run", "t.npz", "--out", "a.csv", "--quiet").exit_code == 0
    header, *rows = csv.reader(io.StringIO((tmp_path / "a.csv").read_text(), newline=""))
    said = {row[0] for row in rows}
    assert said <= {"'=1+1", *LABELS[1:]}
    assert {"'=1+1", "-1"} <= said
    assert all(0 <= float(cell) <= 1 for row in rows for cell in row[1:])
    assert equipoise("predict", "run", "t.npz", "--out", "a.npz", "--quiet").exit_code == 0
    names = np.load(tmp_path / "a.npz").files
    assert "p(..%2F%1B]0;x%C2%9B2J)" in names
    assert len(names) == len(header) == 5
    answers = json.loads(equipoise("predict", "run", "t.npz", "--json").stdout)["answers"]
    assert set(answers["y"]) <= set(LABELS)


def test_a_want_of_memory_is_told_in_the_words_of_the_library():
    told = explain(MemoryError("a kernel of 9 × 9 pairs of rows would need 5 TB"))
    assert told.title == "There is not enough memory"
    assert told.message == "a kernel of 9 × 9 pairs of rows would need 5 TB"


def test_a_line_of_progress_is_not_wrapped_where_it_is_piped(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    watch = Watch(total=1, unit="epoch", shown=True)
    watch.record({"epoch": 1, "loss": 0.25, "learning_rate": 0.01, "forward_steps": 12, "adjoint_steps": 14})
    said = capsys.readouterr().err
    assert len(said) > 60
    assert said.count("\n") == 1
