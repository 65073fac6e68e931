"""How text is cut into words before byte-pair merging, by the names GGUF files give it (`tokenizer.ggml.pre`).

Each row is what the `tokenizer.json` of the model that gave the name says. Names: llama.cpp's llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Step = Mapping[str, Any]


@dataclass(frozen=True)
class PreTokenizer:
    """Steps in order, the `pre_tokenizer` of a tokenizer.json; a last ByteLevel step maps bytes to characters."""

    steps: tuple[Step, ...]
    normalizer: Step | None = None
    ignore_merges: bool = False
    """A word that is in the vocabulary as a whole is taken without looking at merges."""
    adds_bos: bool = False
    """Whether a text starts with BOS where the file does not say."""


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> Step:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _digits(individual: bool) -> Step:
    return {"type": "Digits", "individual_digits": individual}


_BYTES = _byte_level(False)
_GPT2_WORDS = _byte_level(True)
_NFC: Step = {"type": "NFC"}
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED_LETTERS = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_GPT2 = PreTokenizer((_GPT2_WORDS,))
_DIGITS_GPT2 = PreTokenizer((_digits(True), _GPT2_WORDS))
_LLAMA3_STEPS = (_split(_CONTRACTION + _WORD + r"|\p{N}{1,3}" + _TAIL), _BYTES)
_LLAMA3 = PreTokenizer(_LLAMA3_STEPS, ignore_merges=True, adds_bos=True)
_DBRX = PreTokenizer(_LLAMA3_STEPS)
_QWEN2_STEPS = (_split(_CONTRACTION + _WORD + r"|\p{N}" + _TAIL), _BYTES)
_QWEN2 = PreTokenizer(_QWEN2_STEPS, normalizer=_NFC)
_QWEN35 = PreTokenizer(
    (
        _split(
            _CONTRACTION
            + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    )
)
_FALCON = PreTokenizer(
    (
        {"type": "Punctuation", "behavior": "Contiguous"},
        _GPT2_WORDS,
        _digits(False),
        _split("[0-9][0-9][0-9]"),
    )
)
_TEKKEN = PreTokenizer((_split(_CASED % ("", "") + r"|\p{N}" + _CASED_TAIL), _BYTES), ignore_merges=True)
_GPT4O = PreTokenizer(
    (_split(_CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}" + _CASED_TAIL), _BYTES)
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(_HAN_AND_HANGUL),
        _digits(True),
        _BYTES,
    )
)
_DEEPSEEK_LLM = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?[" + _CASED_LETTERS + "]+"),
        _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        _split(r"\s+$"),
        _split(_HAN_AND_HANGUL),
        _digits(True),
        _BYTES,
    )
)
_DEEPSEEK3 = PreTokenizer(
    (
        _split(r"\p{N}{1,3}"),
        _split("[一-龥぀-ゟ゠-ヿ]+"),
        _split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    )
)
_SEED_CODER = PreTokenizer(
    (_split(_CONTRACTION + _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"), _BYTES)
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "jais", "exaone4", "mellum"), _GPT2),
    **dict.fromkeys(("trillion", "granite-docling", "gigachat", "a.x-4.0"), _GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_GPT2
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _DBRX),
    "glm4": PreTokenizer(_LLAMA3_STEPS, ignore_merges=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), _QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), PreTokenizer(_QWEN2_STEPS)),
    "qwen35": _QWEN35,
    **dict.fromkeys(("falcon", "default"), _FALCON),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "seed-coder": _SEED_CODER,
}
"""`tokenizer.ggml.pre` → how its model cuts text."""
