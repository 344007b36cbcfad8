"""A table as people have it, with words, dates, gaps and weights, through the commands."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from once import made_once

from cli.commands import SMALL, call
from equipoise.tasks import Run, load

HEADER = "id;size;city;sold;garden;same;share;price;rent"
OPTIONS = ("--delimiter", ";", "--target", "price", "--drop", "rent", "--weight", "share")


def write_homes(path, rows=60):
    """The price is 3 a square metre, 100 more in Rome, and 50 for a garden; every seventh size is missing."""
    draw = np.random.default_rng(0)
    lines = [HEADER]
    for i in range(rows):
        size, city, garden = draw.uniform(20, 90), ("Rome", "Köln", "Oslo")[i % 3], bool(draw.integers(2))
        price = 3 * size + 100 * (city == "Rome") + 50 * garden
        shown = "" if i % 7 == 3 else f"{size:.2f}".replace(".", ",")
        sold = f"{1 + i % 28:02d}.{1 + i % 12:02d}.2020"
        lines.append(f"h{i};{shown};{city};{sold};{garden};x;{1 + i % 2};{price:.2f};7")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    def fit(at):
        table = write_homes(at / "homes.csv")
        result = call("fit", table, *OPTIONS, *SMALL, "--no-report", "--out", at / "run")
        assert result.exit_code == 0, result.output
        (at / "said").write_text(result.stdout, encoding="utf-8")

    return made_once(tmp_path_factory, "homes", fit)


def test_what_the_columns_hold_and_what_is_done_with_them_is_shown_and_kept(homes):
    run = Run.open(homes / "run")
    done = {d["name"]: (d["type"], d["treatment"]) for d in run.data["described"]}
    assert done["city"] == ("category", "an input for each of 3 levels")
    assert done["sold"] == ("date", "year, season, weekday")
    assert done["garden"] == ("boolean", "standardised")
    assert done["size"][0] == "number"
    assert "missing are taken as" in done["size"][1]
    assert done["id"][1] == "dropped: an identifier (all its values differ)"
    assert done["same"][1] == "dropped: constant ('x' in every row)"
    assert done["rent"][1] == "dropped: by --drop"
    said = (homes / "said").read_text(encoding="utf-8")
    for words in ("2020-01-01 … 2020-12-2", "'Köln', 'Oslo', 'Rome'", "dropped: an identifier", "proved"):
        assert words in said
    assert run.config["data"]["drop"] == ["rent"]


def test_a_raw_file_is_answered_and_new_values_are_counted(homes, equipoise, tmp_path):
    new = "garden,city,sold,size,price\nyes,Rome,05.06.2020,50,300\nFalse,Paris,,,0\n"
    (tmp_path / "new.csv").write_text(new)
    result = equipoise("predict", homes / "run", "new.csv", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert told["rows"] == len(told["answers"]["price"]) == 2
    city, sold = told["notes"]
    assert city.startswith("column 'city': 1 row with a level that training did not have (line 3)")
    assert sold.startswith("column 'sold': 1 missing value, where training had none, taken as 2020-06-")
    fitted = load(homes / "run")  # the stored network answers the rows that the table held, as it did
    again = equipoise("predict", homes / "run", homes / "homes.csv", "--delimiter", ";")
    prices = [float(row["price"]) for row in csv.DictReader(io.StringIO(again.stdout))]
    assert len(prices) == 60
    assert fitted.preparation.encoding.rows == 48
    assert float(again.stderr.partition("r2 ")[2]) > 0.5


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("yes,Rome,05.06.2020,big", "column 'size': not a number in line 2 ('big')"),
        ("often,Rome,05.06.2020,50", "column 'garden': not true or false in line 2 ('often')"),
        ("yes,Rome,2020-06-05,50", "column 'sold': not a date such as 31.01.2020 in line 2 ('2020-06-05')"),
    ],
)
def test_a_cell_that_its_column_cannot_hold_is_refused(homes, equipoise, tmp_path, row, words):
    (tmp_path / "new.csv").write_text(f"garden,city,sold,size\n{row}\n")
    result = equipoise("predict", homes / "run", "new.csv")
    assert result.exit_code == 3
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_the_certificate_is_proved_again_of_the_weighted_and_encoded_rows(homes, equipoise):
    result = equipoise("certify", homes / "run", "--json")
    assert result.exit_code == 0, result.output


def test_the_report_tells_what_was_done_with_each_column(homes, equipoise, tmp_path):
    shutil.copytree(homes / "run", tmp_path / "run")
    assert equipoise("report", "run", "-q").exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for words in ("<dt>city</dt>", "an input for each of 3 levels", "dropped: by --drop"):
        assert words in page
