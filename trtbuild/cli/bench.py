"""`trtbuild bench`: engines in, the table, the report and the verdict out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtbuild.cli.options import Json, ProfileName, Quiet, console_of
from trtbuild.errors import UsageError

if TYPE_CHECKING:
    from trtbuild.bench.measurement import LiveStatus
    from trtbuild.cli.console import Console

EXAMPLE = "trtbuild bench engines/fp16 engines/int8 -o bench --profile chat"

_TABLES = ("full", "plain")


class LiveView:
    """What runs now, as one line under the progress bars: engine, load, requests done, rate, time to first token."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def show(self, live: LiveStatus) -> None:
        now = live.status
        rate = "–" if now.rate_tok_s is None else f"{now.rate_tok_s:.0f} tok/s"
        ttft = "–" if now.ttft_ms is None else f"{now.ttft_ms:.0f} ms"
        self.console.status(
            f"{live.engine}, {live.load}, {now.phase} {live.repeat}/{live.repeats}: "
            f"{now.done}/{now.total} requests, {now.in_flight} in flight, {rate}, TTFT {ttft}"
        )


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """A comma-separated list of positive numbers; None stays None. Raises UsageError."""
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a list of numbers", hint=f"for example {option} 1,4,16") from error
    if any(value <= 0 for value in found):
        raise UsageError(f"{option} {text!r} holds a number that is not positive")
    return found


def bench(
    engines: Annotated[list[Path], typer.Argument(metavar="ENGINE…", help="Engine folders to compare.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for bench.json, .md, .csv and report.html.")],
    profile: ProfileName = "chat",
    baseline: Annotated[Path | None, typer.Option(help="Engine that quality is compared with; else fp32.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests in flight, one run each: 1,4,16.")] = None,
    rate: Annotated[str | None, typer.Option(help="Arrivals per second, one run each: 5,20.")] = None,
    burstiness: Annotated[float | None, typer.Option(help="Shape of the gaps between arrivals; 1 is Poisson.")] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV of arrivals to replay instead of any other load.")] = None,
    trace_speed: Annotated[float, typer.Option(help="Replay this many times faster.")] = 1.0,
    trace_requests: Annotated[int | None, typer.Option(help="Replay only the first requests.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Your prompts: JSONL with text, prompt or messages.")] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Random token ids instead of text.")] = False,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests a window holds at least.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Seconds a window lasts at least.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each measurement, engines in turn; no more.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Warm-up requests at most; 0 is none.")] = None,
    knee: Annotated[bool | None, typer.Option("--knee/--no-knee", help="Search the knee and the capacity.")] = None,
    order: Annotated[str | None, typer.Option(help="Queue order in front of the engine: arrival, short-first.")] = None,
    queue_limit: Annotated[int | None, typer.Option(min=1, help="Refuse requests beyond this many waiting.")] = None,
    quality: Annotated[bool, typer.Option("--quality/--no-quality", help="Measure quality.")] = True,
    task: Annotated[list[str] | None, typer.Option(help="lm-eval task (extra eval); may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of arrivals and prompts.")] = None,
    against: Annotated[Path | None, typer.Option(help="An earlier bench.json: fail on a regression.")] = None,
    table: Annotated[str, typer.Option(help="full, or plain: precision, latency, memory, throughput.")] = "full",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure engines side by side: latency, throughput, memory, quality, and which one to ship.

    Each engine runs in a process of its own, in turn with the others. Exit code 6 when no precision passes.
    """
    from trtbuild.bench.benchmark import failure_of, run_bench
    from trtbuild.bench.compare import compare_runs
    from trtbuild.bench.report.text import plain_table, terminal_report
    from trtbuild.bench.report.writing import read_bench, write_reports
    from trtbuild.bench.settings import Overrides
    from trtbuild.profile import load_profile
    from trtbuild.store.atomic import check_replaceable

    if table not in _TABLES:
        raise UsageError(f"no table {table!r}", hint=f"tables are {', '.join(_TABLES)}")
    console = console_of(json, quiet)
    check_replaceable(output)
    old = None if against is None else read_bench(against)
    levels = numbers(concurrency, "--concurrency")
    overrides = Overrides(
        concurrency=None if levels is None else tuple(int(level) for level in levels),
        rates_qps=numbers(rate, "--rate"),
        burstiness=burstiness,
        trace=trace,
        trace_speed=trace_speed,
        trace_requests=trace_requests,
        prompts=prompts,
        synthetic=synthetic,
        requests=requests,
        seconds=seconds,
        repeats=repeats,
        warmup=warmup,
        find_knee=knee,
        order=order,
        queue_limit=queue_limit,
        quality=quality,
        tasks=tuple(task or ()),
        seed=seed,
    )
    result = run_bench(
        engines,
        load_profile(profile),
        baseline=baseline,
        overrides=overrides,
        progress=console,
        watcher=LiveView(console),
    )
    comparison = None if old is None else compare_runs(old, result.document)
    document = result.document if comparison is None else {**result.document, "comparison": comparison.to_json()}
    write_reports(document, output)
    if table == "plain":
        console.plain(plain_table(document))
    else:
        text = terminal_report(document) + ("" if comparison is None else f"\n\n{comparison.text()}")
        console.result(document, lambda: f"{text}\n\nreport: {output / 'report.html'}", path=output)
    failure = failure_of(document) or (None if comparison is None else comparison.failure())
    if failure is not None:
        raise failure
