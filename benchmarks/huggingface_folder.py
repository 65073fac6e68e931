"""Write a model that trtbuild can open (a GGUF file, say) as a Hugging Face folder, for tools that read nothing else.

python benchmarks/huggingface_folder.py MODEL OUT [--dtype float16]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.quantize.unified_hf import write_unified_hf

PLAIN = {row.dtype: row for row in PRECISIONS.values() if row.quant_algo is None}
"""dtype → the precision that only casts to it."""


def write(decoder: Decoder, out: Path, dtype: str) -> None:
    """A unified checkpoint without quantization is an ordinary Hugging Face folder."""
    out.mkdir(parents=True)
    write_unified_hf(quantize(decoder, PLAIN[dtype]), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float16", choices=sorted(PLAIN))
    arguments = parser.parse_args()
    write(open_model(arguments.model), arguments.out, arguments.dtype)


if __name__ == "__main__":
    main()
