"""Reports: cells, documents that lack values, and report.html in a real browser."""

from __future__ import annotations

import copy
import csv
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulated import make_engine

from trtbuild.bench.benchmark import measure_sources
from trtbuild.bench.quality_session import ScoreCache
from trtbuild.bench.report.html import html_report
from trtbuild.bench.report.plots import PLOTS
from trtbuild.bench.report.svg import Chart, ticks
from trtbuild.bench.report.table import number, with_interval
from trtbuild.bench.report.text import markdown_report, terminal_report
from trtbuild.bench.report.writing import csv_report, write_reports
from trtbuild.bench.settings import Overrides
from trtbuild.profile import Evaluation, Profile, Quality, Slo, Workload

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0, "0"), (1234.5, "1234"), (12.345, "12.3"), (0.012345, "0.0123"), (99.96, "100.0")],
)
def test_numbers_have_three_digits_and_nothing_is_a_dash(value: float | None, text: str) -> None:
    assert number(value) == text
    assert with_interval(12.0, [11.0, 13.0]) == "12.0 (11.0–13.0)"
    assert with_interval(None, None) == "–" and with_interval(2.0, None) == "2.00"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 4.1), (0, 12345), (0.001, 0.0042), (7, 7)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert all(low <= t <= high for t in found)
    assert len(found) in range(1, 12)


def test_a_chart_escapes_names_and_describes_itself() -> None:
    chart = Chart("a <b>", "x & y", "x", "y", (0, 1), (0, 1))
    chart.line([(0, 0), (1, 1)], 0, "<script>")
    text = chart.render("c")
    assert "<script>" not in text and "&lt;script&gt;" in text and "<desc" in text and 'role="img"' in text


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engines")
    engines = {
        "fp32": {"step": ["capacity", 12, 0.020], "noise": 0.03},
        "int8-wo": {"step": ["capacity", 16, 0.014], "noise": 0.03, "seed": 2, "loss": 0.004},
        "int8": {"step": ["smooth", 0.008, 0.0007], "noise": 0.03, "seed": 3, "loss": 0.05, "fail_every": 500},
    }
    sources = [make_engine(folder, name, tokenizer=True, **settings) for name, settings in engines.items()]
    return measure_sources(sources, sources[0], _profile(), Overrides(), ScoreCache(None)).document


def _profile() -> Profile:
    return Profile(
        name="chat",
        description="Everything a report can show <&> 测试.",
        slo=Slo(latency_p99_ms=400.0, rate_qps=10.0),
        quality=Quality(max_perplexity_change_pct=2.0),
        workload=Workload(
            prompt_tokens=(16,),
            output_tokens=12,
            concurrency=(1, 8, 32),
            min_requests=120,
            min_seconds=0,
            warmup_requests=16,
            find_knee=True,
            max_concurrency=64,
        ),
        evaluation=Evaluation(windows=8, window_tokens=64, answers=3, answer_tokens=8),
    )


def test_the_tables_are_at_most_a_hundred_columns_wide(document: dict[str, Any]) -> None:
    names = tuple(result["name"] for result in document["results"])
    rows = [line for line in terminal_report(document).splitlines() if line.startswith((*names, "precision"))]
    tables = [line for line in rows if ":" not in line]
    assert len(tables) == 8 and max(map(len, tables)) <= 100
    assert terminal_report(document).splitlines()[0].endswith("%)")  # errors are said first


def test_csv_has_a_row_per_engine_and_load_and_empty_cells_for_no_value(document: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_report(document))))
    assert len(rows) == 3 * 4
    for row, load in zip(rows, (load for r in document["results"] for load in r["loads"]), strict=True):
        assert float(row["throughput_tok_s"]) == load["throughput_tok_s"]
        assert float(row["latency_ms_mean"]) == load["latency_ms"]["mean"]
        assert row["latency_ms_p99.9"] == ""


def test_markdown_tables_are_whole(document: dict[str, Any]) -> None:
    tables = [block for block in markdown_report(document).split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        lines = table.splitlines()
        assert len(lines) == 5 and len({line.count("|") for line in lines}) == 1


def test_every_report_survives_a_document_without_values(document: dict[str, Any], tmp_path: Path) -> None:
    empty = copy.deepcopy(document)
    for result in empty["results"]:
        result |= dict.fromkeys(("throughput_tok_s", "throughput_req_s", "ttft_ms", "tpot_ms", "latency_ms", "memory"))
        result |= dict.fromkeys(("quality", "knee", "capacity", "rate_capacity", "peak_memory_bytes"))
        result["curve"] = []
        for load in result["loads"]:
            load |= dict.fromkeys(("throughput_tok_s", "ttft_ms", "tpot_ms", "latency_ms", "slo", "goodput_req_s"))
            load["cdf"] = {"latency_ms": None, "ttft_ms": None}
            load["repeats"] = []
    empty["quality"] = None
    out = write_reports(empty, tmp_path / "empty")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("Not measured in this run.") == len(PLOTS)
    assert "nothing was measured" in terminal_report(empty)


def test_the_page_loads_nothing_from_anywhere(document: dict[str, Any]) -> None:
    page = html_report(document)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert "@import" not in page and "url(" not in page and "<script" not in page
    assert "<&>" not in page and "&lt;&amp;&gt; 测试" in page
    assert len(page) < 500_000


def _chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--enable-logging=stderr")
    return subprocess.run([CHROMIUM, *flags, *arguments], capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")
def test_the_page_opens_in_a_browser_with_every_plot_and_fits_a_phone(document: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html_report(document), encoding="utf-8")
    probe = tmp_path / "probe.html"
    probe.write_text(
        """<iframe src="report.html" width="390" height="800"></iframe><script>
        document.querySelector("iframe").onload = e => {
          const inner = e.target.contentDocument, plots = [...inner.querySelectorAll("figure > svg")];
          document.body.dataset.found = [inner.documentElement.scrollWidth,
            plots.every(p => p.getBoundingClientRect().height > 80), plots.map(p => p.id).join("+")].join(",");
        };</script>""",
        encoding="utf-8",
    )
    opened = _chromium("--dump-dom", probe.as_uri())
    assert "CONSOLE" not in opened.stderr
    width, drawn, plots = re.search(r'data-found="([^"]*)"', opened.stdout).group(1).split(",")
    assert int(width) <= 390, "the page scrolls sideways on a phone"
    assert drawn == "true"
    assert plots == "plot-cdf+plot-ttft+plot-curve+plot-memory+plot-quality"
    dom = _chromium("--dump-dom", page.as_uri())
    assert "CONSOLE" not in dom.stderr
    assert dom.stdout.count("knee at") >= 2 and dom.stdout.count('class="ring"') == 2
