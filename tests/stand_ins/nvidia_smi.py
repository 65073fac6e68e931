"""A stand-in for nvidia-smi: the one query trtbuild makes, for GPUs that the tests describe."""

from __future__ import annotations

import sys

from common import GPU_MIB, GPU_NAME, GPUS, SM, record_call

FIELDS = {
    "index": str,
    "name": lambda _: GPU_NAME,
    "memory.total": lambda _: str(GPU_MIB),
    "memory.free": lambda _: str(GPU_MIB - 400),
    "memory.used": lambda _: "400",
    "compute_cap": lambda _: f"{SM // 10}.{SM % 10}",
    "driver_version": lambda _: "580.95",
}


def main() -> None:
    record_call()
    query, form = sys.argv[1], sys.argv[2]
    assert query.startswith("--query-gpu=") and form == "--format=csv,noheader,nounits", sys.argv
    fields = query.removeprefix("--query-gpu=").split(",")
    for index in range(GPUS):
        sys.stdout.write(", ".join(FIELDS[name](index) for name in fields) + "\n")
    sys.exit(0 if GPUS else 6)


if __name__ == "__main__":
    main()
