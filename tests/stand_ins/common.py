"""What the stand-ins share: the machine they pretend to run on, from environment variables, and a record of calls."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

VERSION = os.environ.get("STAND_IN_VERSION", "1.2.1")
GPUS = int(os.environ.get("STAND_IN_GPUS", "1"))
SM = int(os.environ.get("STAND_IN_SM", "89"))
GPU_NAME = "NVIDIA L40S"
GPU_MIB = int(os.environ.get("STAND_IN_GPU_MIB", "46068"))


def record_call() -> None:
    """Append this call to the file that the tests read."""
    path = os.environ.get("STAND_IN_CALLS")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([Path(sys.argv[0]).stem.replace("_", "-"), *sys.argv[1:]]) + "\n")


def fail_if_told(tool: str) -> None:
    """Say what the tests want to be said and end, to try the triage."""
    message = os.environ.get(f"STAND_IN_FAIL_{tool}")
    if message == "KILL":
        os.kill(os.getpid(), 9)
    if message:
        sys.stderr.write(message + "\n")
        sys.exit(1)


def crash(kind: str, text: str) -> None:
    sys.stderr.write(f'Traceback (most recent call last):\n  File "stand-in", line 1, in <module>\n{kind}: {text}\n')
    sys.exit(1)


def log(text: str) -> None:
    sys.stdout.write(f"[TRT-LLM] [I] {text}\n")
    sys.stdout.flush()
