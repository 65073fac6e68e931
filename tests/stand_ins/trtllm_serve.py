"""A stand-in for trtllm-serve: takes its flags and the engine's mapping, then says that it would serve."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common import GPUS, crash, log, record_call
from strict_flags import parse, refuse, serve_rows


def main() -> None:
    record_call()
    words = sys.argv[1:]
    if words and words[0] == "serve":
        words.pop(0)
    if not words or words[0].startswith("--"):
        refuse("Missing argument 'MODEL'.", "click")
    engine = Path(words.pop(0))
    given = parse(words, serve_rows(), style="click")
    if given.get("--backend", "pytorch") != "tensorrt":
        crash("ValueError", "this engine cannot be run by the PyTorch backend")
    mapping = json.loads((engine / "config.json").read_text(encoding="utf-8"))["pretrained_config"]["mapping"]
    asked = (given.get("--tensor_parallel_size|--tp_size", 1), given.get("--pipeline_parallel_size|--pp_size", 1))
    if asked != (mapping["tp_size"], mapping["pp_size"]):
        crash("ValueError", f"tp_size {asked[0]} is not consistent with the engine's tp_size {mapping['tp_size']}")
    if mapping["world_size"] > GPUS:
        crash("AssertionError", "mpiSize == tp * pp")
    if not (Path(given["--tokenizer"]) / "tokenizer.json").is_file():
        crash("OSError", "no tokenizer")
    log(f"serving on {given.get('--host', 'localhost')}:{given.get('--port', 8000)}")


if __name__ == "__main__":
    main()
