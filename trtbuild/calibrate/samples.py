"""Samples for a model: its tokenizer, the built-in text or a person's own, cut to one length."""

from __future__ import annotations

from pathlib import Path

from trtbuild.calibrate.corpus import Samples, builtin_calibration, tokenized_samples
from trtbuild.calibrate.texts import read_texts
from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.tokenizer import load_tokenizer, read_tokenizer_files
from trtbuild.progress import Progress, silent


def samples_for(
    decoder: Decoder,
    data: Path | None,
    samples: int,
    seq_len: int,
    *,
    seed: int = 0,
    tokenizer_folder: Path | None = None,
    progress: Progress = silent,
) -> Samples:
    """Tokenize `data` (the built-in calibration text when None) for a model and say what was found.

    `tokenizer_folder` replaces the tokenizer that travels with the model. Fewer samples than asked for are told, not
    hidden. Raises InputRefused for text or a tokenizer that cannot be used.
    """
    assets = decoder.assets if tokenizer_folder is None else read_tokenizer_files(tokenizer_folder)
    tokenizer = load_tokenizer(assets, spec=decoder.spec, where=str(tokenizer_folder or decoder.location))
    texts = builtin_calibration() if data is None else read_texts(data)
    progress.note(f"calibrating on {texts.describe()}")
    length = min(seq_len, decoder.spec.max_position_embeddings)
    taken = tokenized_samples(tokenizer, texts, samples, length, seed=seed)
    if len(taken.ids) < samples:
        progress.note(f"the text is enough for {len(taken.ids)} of {samples} samples of {length} tokens")
    return taken
