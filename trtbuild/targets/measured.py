"""What a vendor's benchmark tool measured, for targets whose engines are not driven from this process.

Such tools report summaries, not requests; a value they do not report is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Summary = Mapping[str, float]
"""Of one metric over requests: "min", "max", "mean", and the percentiles the tool gives ("p50", "p90" …)."""


@dataclass(frozen=True)
class ToolLoad:
    """One run of the tool: `concurrency` requests in flight, `requests` answered in `seconds`; latencies in ms."""

    concurrency: int
    requests: int
    seconds: float
    input_tokens: int
    output_tokens: int
    throughput_tok_s: float | None
    throughput_req_s: float | None
    ttft_ms: Summary | None
    tpot_ms: Summary | None
    latency_ms: Summary | None
    stop_reason: str = "all requests answered"


@dataclass(frozen=True)
class ToolMemory:
    """GPU memory of one rank, in bytes; each part None where neither the tool nor its log said it.

    `peak_bytes` is the most that was in use during the run beyond what was in use before it, `pool_tokens` what the KV
    pool held, `free_before_pool_bytes` what was left for it, of which the runtime takes a share by default.
    """

    weights_bytes: int | None = None
    activation_bytes: int | None = None
    buffer_bytes: int | None = None
    pool_bytes: int | None = None
    pool_tokens: int | None = None
    free_before_pool_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class ToolMeasurement:
    """Everything one engine gave: a run per load, its memory, and what a reader should know about how."""

    loads: tuple[ToolLoad, ...]
    memory: ToolMemory
    notes: tuple[str, ...] = ()
