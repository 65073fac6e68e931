"""What transformers computes for tests/rope_cases.py; run as a script it writes tests/data/rope/transformers.json."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from builders import family_config
from rope_cases import CASES

STORED = Path(__file__).parent / "data" / "rope" / "transformers.json"


def _plain(config: Any) -> list[float]:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(head * config.rope_parameters.get("partial_rotary_factor", 1.0))
    return [1.0 / config.rope_parameters["rope_theta"] ** (i / dim) for i in range(0, dim, 2)]


def frequencies(case: str) -> list[dict[str, Any]]:
    """For each sequence length of a case: inverse frequencies and attention factor."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    family, changes, lengths = CASES[case]
    silent = ("rope_theta",) if "rope_parameters" in changes else ()
    settings = {name: value for name, value in family_config(family).items() if name not in silent}
    # transformers 5 stumbles over "su", the name longrope had before
    text = json.dumps({**settings, **changes}).replace('"su"', '"longrope"')
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(text, encoding="utf-8")
        config = AutoConfig.from_pretrained(folder)
    found = []
    for length in lengths:
        function = ROPE_INIT_FUNCTIONS.get(config.rope_parameters["rope_type"])
        if function is None:
            values, factor = _plain(config), 1.0
        else:
            tensor, factor = function(config, "cpu", seq_len=length)
            values = [float(v) for v in tensor]
        found.append({"max_seq_len": length, "inv_freq": values, "attention_factor": float(factor)})
    return found


if __name__ == "__main__":
    STORED.parent.mkdir(parents=True, exist_ok=True)
    STORED.write_text(json.dumps({case: frequencies(case) for case in CASES}, indent=None) + "\n", encoding="utf-8")
