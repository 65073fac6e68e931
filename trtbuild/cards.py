"""Common NVIDIA cards: memory, bandwidth and SM version, so that a plan needs no GPU at hand.

`memory_mib` is the total `nvidia-smi` reports (less than the name says where ECC or the driver keeps a part), the
nominal size where no report was known. `bandwidth_gb_s` and the SM version are from NVIDIA's data sheets.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from trtbuild.errors import UsageError


@dataclass(frozen=True)
class Card:
    """One card: `sm` is 86 for compute capability 8.6; `memory_bytes` is what a process can see of it."""

    name: str
    nominal_gb: int
    memory_mib: int
    bandwidth_gb_s: int | None
    sm: int | None

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20

    @property
    def title(self) -> str:
        return f"{self.name} {self.nominal_gb}GB" if self.nominal_gb else self.name


CARDS: tuple[Card, ...] = (
    Card("T4", 16, 15360, 320, 75),
    Card("RTX 2080 Ti", 11, 11264, 616, 75),
    Card("A2", 16, 15356, 200, 86),
    Card("A10", 24, 23028, 600, 86),
    Card("A10G", 24, 23028, 600, 86),
    Card("A16", 16, 15356, 200, 86),
    Card("A30", 24, 24576, 933, 80),
    Card("A40", 48, 46068, 696, 86),
    Card("A100", 40, 40960, 1555, 80),
    Card("A100", 80, 81920, 1935, 80),
    Card("A100 SXM", 80, 81920, 2039, 80),
    Card("RTX 3060", 12, 12288, 360, 86),
    Card("RTX 3070", 8, 8192, 448, 86),
    Card("RTX 3080", 10, 10240, 760, 86),
    Card("RTX 3090", 24, 24576, 936, 86),
    Card("RTX A4000", 16, 16376, 448, 86),
    Card("RTX A5000", 24, 24564, 768, 86),
    Card("RTX A6000", 48, 49140, 768, 86),
    Card("Jetson AGX Orin", 64, 62500, 204, 87),
    Card("L4", 24, 23034, 300, 89),
    Card("L40", 48, 46068, 864, 89),
    Card("L40S", 48, 46068, 864, 89),
    Card("RTX 4060", 8, 8188, 272, 89),
    Card("RTX 4060 Ti", 8, 8188, 288, 89),
    Card("RTX 4060 Ti", 16, 16380, 288, 89),
    Card("RTX 4070", 12, 12282, 504, 89),
    Card("RTX 4070 Ti SUPER", 16, 16376, 672, 89),
    Card("RTX 4080", 16, 16376, 717, 89),
    Card("RTX 4090", 24, 24564, 1008, 89),
    Card("RTX 6000 Ada", 48, 49140, 960, 89),
    Card("H100", 80, 81559, 3350, 90),
    Card("H100 PCIe", 80, 81559, 2000, 90),
    Card("H100 NVL", 94, 95830, 3900, 90),
    Card("H20", 96, 97871, 4000, 90),
    Card("GH200", 96, 97871, 4000, 90),
    Card("H200", 141, 143771, 4800, 90),
    Card("B200", 180, 183359, 8000, 100),
    Card("GB200", 186, 189471, 8000, 100),
    Card("B300", 288, 275040, 8000, 103),
    Card("Jetson Thor", 128, 125772, 273, 110),
    Card("RTX 5060 Ti", 8, 8151, 448, 120),
    Card("RTX 5060 Ti", 16, 16311, 448, 120),
    Card("RTX 5070", 12, 12227, 672, 120),
    Card("RTX 5070 Ti", 16, 16303, 896, 120),
    Card("RTX 5080", 16, 16303, 960, 120),
    Card("RTX 5090", 32, 32607, 1792, 120),
    Card("RTX PRO 6000", 96, 97887, 1792, 120),
    Card("DGX Spark", 128, 122880, 273, 121),
)

_MEMORY = re.compile(r"(?<![\w.])(\d+)\s*G(?:i?B)?\b", re.IGNORECASE)
_SM = re.compile(r"\bSM\s*[_-]?(\d{2,3})\b", re.IGNORECASE)
_DECORATION = re.compile(r"\b(nvidia|geforce|tesla|graphics|gpu|laptop|hbm3e?|hbm2e?|generation|blackwell)\b")


def _key(text: str) -> str:
    """A card's name without vendor words, memory size, spaces and dashes: `NVIDIA A100-SXM4-80GB` → `a100sxm`."""
    text = _DECORATION.sub(" ", re.sub(r"[-_/,]", " ", _SM.sub(" ", text)).lower())
    text = re.sub(r"\bsxm\d?\b", "sxm", _MEMORY.sub(" ", text))
    return re.sub(r"\s+", "", text)


def find_card(text: str) -> Card:
    """The card that `text` names: "A10", "A100 80GB", "NVIDIA GeForce RTX 4090", or a made-up one, "24GB SM86".

    A name with several memory sizes and none given is the smallest. Raises UsageError with close names.
    """
    memory = _MEMORY.search(text)
    nominal_gb = int(memory.group(1)) if memory else None
    key = _key(text)
    sm = _SM.search(text)
    if not key and nominal_gb:
        return Card("custom", nominal_gb, nominal_gb * 1024, None, int(sm.group(1)) if sm else None)
    named = [card for card in CARDS if _key(card.name) == key]
    fitting = [card for card in named if nominal_gb in (None, card.nominal_gb)]
    if fitting:
        return min(fitting, key=lambda card: card.nominal_gb)
    if named:
        sizes = ", ".join(card.title for card in named)
        raise UsageError(f"no {named[0].name} with {nominal_gb} GB", hint=f"known: {sizes}")
    names = {_key(card.name): card.title for card in CARDS}
    close = [names[match] for match in difflib.get_close_matches(key, names, 3, 0.5)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"no card {text!r} in the table", hint=f'{hint}A size and an SM version work for any card: --gpu "24GB SM86"'
    )
