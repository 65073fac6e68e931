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
_HAN_AND_HANGUL = "[一-龥ࠀ-一가-\ud7ff]+".encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")

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
    ),
    normalizer=_NFC,
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
        _split(
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
            r"Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚ"
            r"ａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
        ),
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
