"""Recorded traffic: a CSV of arrival times and lengths, scaled in time and clipped as told, and said so."""

from __future__ import annotations

import csv
import datetime
import math
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.bench.loads import Replay
from trtbuild.errors import InputRefused

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival: seconds after the first, prompt tokens, answer tokens; and what was done to it."""

    times_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    story: str

    def load(self) -> Replay:
        """The load that replays it."""
        return Replay(self.times_s, self.story)


def read_trace(path: Path) -> Trace:
    """Read a CSV with the columns `TIMESTAMP,ContextTokens,GeneratedTokens` (others are ignored).

    A timestamp is seconds as a number, or an ISO date and time with any number of decimals. Rows are sorted by time.
    Raises InputRefused with the line for anything else.
    """
    rows: list[tuple[float, int, int]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputRefused(
                f"column {missing[0]} is missing", where=path, hint=f"a trace has the columns {','.join(COLUMNS)}"
            )
        for row in reader:
            try:
                time_s, prompt, output = (row[name] for name in COLUMNS)
                entry = (_seconds(time_s), int(prompt), int(output))
            except (TypeError, ValueError) as error:
                raise InputRefused(f"not a row of a trace ({error})", where=f"{path} line {reader.line_num}") from error
            if entry[1] < 1 or entry[2] < 0:
                raise InputRefused(
                    "a request has no prompt or a negative length", where=f"{path} line {reader.line_num}"
                )
            rows.append(entry)
    if not rows:
        raise InputRefused("the trace has no requests", where=path)
    rows.sort(key=lambda row: row[0])
    times, prompts, outputs = zip(*rows, strict=True)
    start = times[0]
    return Trace(tuple(t - start for t in times), prompts, outputs, f"replay of {path.name}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        whole, _, fraction = text.strip().partition(".")
        digits = fraction.rstrip("Z")
        moment = datetime.datetime.fromisoformat(whole.rstrip("Z")).replace(tzinfo=datetime.timezone.utc)
        return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no time") from None
    return value


def scale_trace(
    trace: Trace,
    *,
    speed: float = 1.0,
    max_requests: int | None = None,
    max_input_len: int | None = None,
    max_seq_len: int | None = None,
) -> Trace:
    """Replay `speed` times as fast, at most `max_requests`, with lengths clipped to the engine's limits.

    Prompts are clipped first, then answers to the room that is left; an answer of no tokens becomes one of one, the
    least an engine can be asked for. What was changed is added to the trace's story.
    """
    count = len(trace.times_s) if max_requests is None else min(max_requests, len(trace.times_s))
    prompts = [min(n, max_input_len or n) for n in trace.prompt_tokens[:count]]
    asked = [max(1, n) for n in trace.output_tokens[:count]]
    outputs = [max(1, min(n, max_seq_len - p)) if max_seq_len else n for n, p in zip(asked, prompts, strict=True)]
    clipped_prompts = sum(p < n for p, n in zip(prompts, trace.prompt_tokens, strict=False))
    clipped_outputs = sum(o < n for o, n in zip(outputs, asked, strict=True))
    story = f"{trace.story}: {count} of {len(trace.times_s)} requests, {speed:g} times as fast"
    if clipped_prompts or clipped_outputs:
        story += f", {clipped_prompts} prompts and {clipped_outputs} answers clipped to the engine's limits"
    times = tuple(t / speed for t in trace.times_s[:count])
    return replace(trace, times_s=times, prompt_tokens=tuple(prompts), output_tokens=tuple(outputs), story=story)
