"""The verdict on real engines: the same when the run is repeated, and not fooled by a slowdown or ruined answers.

    python benchmarks/verdict_on_engines.py MODEL [--work DIR] [--in-flight 8] [--seconds 3] [--json OUT]

MODEL is anything trtbuild opens. Engines for the CPU are built of it in fp32, fp16, int8-wo and int8, and one more in
int8 whose calibration is forced to `entropy`, the common way to ruin a language model. `trtbuild bench` then runs

    first      the four engines
    again      the same: no regression, the same answer for every precision
    slower     the same, the fp16 engine stopped for a tenth of the time: a regression of fp16, and of no other
    ruined     with the ruined int8 engine in the place of the good one: it fails for quality and is not shipped

each against the last good run before it. Exits 1 when one of them is not so. A shared machine that changes its speed
between two runs fails it, too: then all engines of a run are slower, or faster, than before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

PRECISIONS = ("fp32", "fp16", "int8-wo", "int8")
SLOWED = "fp16"
SLOWER = 0.1
_PERIOD_S = 0.1

PROFILE = """\
name: verdict
description: Throughput with eight requests in flight, the answers nearly those of FP32.
precisions: [fp32, fp16, int8-wo, int8]
objective: throughput
limits: {{max_batch_size: {in_flight}, max_input_len: 512, max_seq_len: 1024, max_num_tokens: 1024}}
quality: {{max_perplexity_change_pct: 2.0}}
workload:
  prompt_tokens: [32, 64]
  output_tokens: 32
  concurrency: [{in_flight}]
  repeats: 3
  max_repeats: 9
  resolution_pct: 8
  min_requests: 8
  min_seconds: {seconds}
  max_seconds: 60
  warmup_requests: 16
  warmup_seconds: 5
evaluation: {{windows: 32, window_tokens: 512, answers: 10, answer_tokens: 32}}
"""


def trtbuild(*arguments: str) -> subprocess.Popen[bytes]:
    print("$ trtbuild", *arguments, file=sys.stderr, flush=True)
    return subprocess.Popen([sys.executable, "-m", "trtbuild", *arguments], stdout=subprocess.DEVNULL)


def finished(process: subprocess.Popen[bytes], allowed: Sequence[int] = (0,)) -> int:
    """The exit code; ends the script for one that is not allowed."""
    code = process.wait()
    if code not in allowed:
        raise SystemExit(f"exit code {code}")
    return code


def build(model: str, work: Path, profile: Path) -> dict[str, Path]:
    """Engine folders by precision, and that of the ruined one under "ruined"."""
    engines = {}
    for name in (*PRECISIONS, "ruined"):
        precision, forced = ("int8", ["--calibration", "entropy"]) if name == "ruined" else (name, [])
        checkpoint, engines[name] = work / f"checkpoint-{name}", work / f"engine-{name}"
        common = ("--profile", str(profile), "-q")
        if not engines[name].exists():
            calibration = ("--samples", "36", "--seq-len", "512", *forced) if precision == "int8" else ()
            finished(trtbuild("quantize", model, "-o", str(checkpoint), "-p", precision, *calibration, *common))
            finished(trtbuild("build", str(checkpoint), "-o", str(engines[name]), "--target", "cpu", *common))
    return engines


def worker_of(bench: subprocess.Popen[bytes], which: int) -> psutil.Process | None:
    """The bench's worker number `which`, counted as they are started; None until all have been."""
    workers = [p for p in psutil.Process(bench.pid).children() if "trtbuild.bench.worker" in " ".join(p.cmdline())]
    return sorted(workers, key=psutil.Process.create_time)[which] if len(workers) == len(PRECISIONS) else None


def stop_now_and_then(bench: subprocess.Popen[bytes], which: int) -> None:
    """Stop a worker of the bench for SLOWER of the time, for as long as it lives."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while (worker := worker_of(bench, which)) is None:
            time.sleep(_PERIOD_S)
        while True:
            worker.suspend()
            time.sleep(SLOWER * _PERIOD_S)
            worker.resume()
            time.sleep((1 - SLOWER) * _PERIOD_S)


def bench(engines: Sequence[Path], profile: Path, out: Path, against: Path | None, slowed: int | None) -> Any:
    """bench.json of one run, its exit code under "exit_code"."""
    more = () if against is None else ("--against", str(against / "bench.json"))
    command = ["bench", *map(str, engines), "-o", str(out), "--profile", str(profile), *more, "-q"]
    process = trtbuild(*command)
    if slowed is not None:
        threading.Thread(target=stop_now_and_then, args=(process, slowed), daemon=True).start()
    code = finished(process, (0, 6))
    return {**json.loads((out / "bench.json").read_text(encoding="utf-8")), "exit_code": code}


def verdicts(document: Any) -> dict[str, str]:
    """Engine → pass, fail or inconclusive, and "ship" → the engine to ship."""
    found = {result["name"]: result["verdict"] for result in document["results"]}
    return {**found, "ship": str(document["verdict"]["ship"])}


def regressions(document: Any) -> list[str]:
    changes = document["comparison"]["changes"]
    return [f"{c['engine']} {c['what']} {c['change_pct']:+.1f} %" for c in changes if c["verdict"] == "regression"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--work", type=Path, help="build and measure in this folder and leave it")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        profile = work / "verdict.yaml"
        profile.write_text(PROFILE.format(in_flight=arguments.in_flight, seconds=arguments.seconds), encoding="utf-8")
        engines = build(arguments.model, work, profile)
        good = [engines[name] for name in PRECISIONS]
        ruined = [engines["ruined" if name == "int8" else name] for name in PRECISIONS]
        first, again = work / "first", work / "again"
        runs = {}
        for name, chosen, against, slowed in (
            ("first", good, None, None),
            ("again", good, first, None),
            ("slower", good, again, PRECISIONS.index(SLOWED)),
            ("ruined", ruined, again, None),
        ):
            runs[name] = bench(chosen, profile, work / name, against, slowed)
            rates = {r["name"]: round(r["throughput_tok_s"], 1) for r in runs[name]["results"]}
            print(f"{name}: {rates}\n    {verdicts(runs[name])}", flush=True)
            if against is not None:
                print(f"    regressions: {regressions(runs[name])}", flush=True)
    slow, bad = regressions(runs["slower"]), regressions(runs["ruined"])
    checks = {
        "repeated: the same verdict": verdicts(runs["again"]) == verdicts(runs["first"]),
        "repeated: no regression": not regressions(runs["again"]) and runs["again"]["exit_code"] == 0,
        "slowdown: told of its engine": any(SLOWED in line and "throughput" in line for line in slow),
        "slowdown: told of no other": all(SLOWED in line for line in slow),
        "ruined: int8 fails and is not shipped": verdicts(runs["ruined"])["int8"] == "fail"
        and verdicts(runs["ruined"])["ship"] != "int8",
        "ruined: told as a regression of its quality": any("int8 perplexity" in line for line in bad),
        "ruined: the others as before": all(
            verdicts(runs["ruined"])[name] == verdict
            for name, verdict in verdicts(runs["first"]).items()
            if name not in ("int8", "ship")
        ),
    }
    for what, holds in checks.items():
        print(f"{what}: {'yes' if holds else 'NO'}")
    if arguments.json:
        kept = {
            name: {"verdicts": verdicts(run), "regressions": regressions(run) if name != "first" else []}
            for name, run in runs.items()
        }
        arguments.json.write_text(json.dumps({"checks": checks, "runs": kept}, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
