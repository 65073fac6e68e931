"""Axes and marks as inline SVG: colours come from the page's CSS variables, so one drawing is right in light and dark.

Coordinates are in a view box that the page scales; text is large enough in it to be read on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 48

SERIES = 8
"""Colours the page defines (`--s0` … `--s7`); series beyond them repeat colours with another dash."""

DASHES = ("", "7 4", "2 3", "10 3 2 3")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's text: thousands as k, no trailing zeros."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


@dataclass
class Chart:
    """A plot area with linear axes. Add marks, then `render`."""

    title: str
    description: str
    x_title: str
    y_title: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    y_label: Callable[[float], str] = label
    x_label: Callable[[float], str] = label
    marks: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / ((high - low) or 1) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - _TOP - _BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], series: int, name: str) -> None:
        path = " ".join(f"{'L' if i else 'M'}{self.x(x):.1f},{self.y(y):.1f}" for i, (x, y) in enumerate(points))
        dash = DASHES[series % len(DASHES)]
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self.marks.append(
            f'<path class="line" d="{path}" {_stroke(series)}{style}><title>{escape(name)}</title></path>'
        )

    def point(self, x: float, y: float, series: int, name: str) -> None:
        cx, cy = self.x(x), self.y(y)
        self.marks.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" {_fill(series)}><title>{escape(name)}</title></circle>'
        )

    def ring(self, x: float, y: float, series: int, name: str) -> None:
        cx, cy = self.x(x), self.y(y)
        self.marks.append(
            f'<circle class="ring" cx="{cx:.1f}" cy="{cy:.1f}" r="9" {_stroke(series)}>'
            f"<title>{escape(name)}</title></circle>"
        )

    def whisker(self, start: tuple[float, float], end: tuple[float, float], series: int) -> None:
        (x0, y0), (x1, y1) = start, end
        self.marks.append(
            f'<line class="whisker" x1="{self.x(x0):.1f}" y1="{self.y(y0):.1f}" x2="{self.x(x1):.1f}" '
            f'y2="{self.y(y1):.1f}" {_stroke(series)}/>'
        )

    def text(self, x: float, y: float, text: str, *, dx: float = 0, dy: float = 0, anchor: str = "start") -> None:
        self.marks.append(
            f'<text class="note" x="{self.x(x) + dx:.1f}" y="{self.y(y) + dy:.1f}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def rule(self, y: float, text: str) -> None:
        """A horizontal limit across the plot."""
        at = self.y(y)
        self.marks.append(
            f'<line class="limit" x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}"/>'
            f'<text class="note" x="{WIDTH - _RIGHT}" y="{at - 5:.1f}" text-anchor="end">{escape(text)}</text>'
        )

    def render(self, identifier: str) -> str:
        """The SVG element, with its title and description for screen readers."""
        bottom = HEIGHT - _BOTTOM
        parts = [
            f'<svg id="{identifier}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-labelledby="{identifier}-t {identifier}-d">',
            f'<title id="{identifier}-t">{escape(self.title)}</title>',
            f'<desc id="{identifier}-d">{escape(self.description)}</desc>',
        ]
        for value in ticks(*self.y_range):
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}"/>')
            parts.append(
                f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{escape(self.y_label(value))}</text>'
            )
        for value in ticks(*self.x_range):
            at = self.x(value)
            parts.append(f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>')
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(self.x_label(value))}</text>'
            )
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(
            f'<text class="axis" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(self.x_title)}</text>'
        )
        up = (_TOP + bottom) / 2
        parts.append(
            f'<text class="axis" x="14" y="{up}" text-anchor="middle" transform="rotate(-90 14 {up})">'
            f"{escape(self.y_title)}</text>"
        )
        return "".join([*parts, *self.marks, "</svg>"])


def _stroke(series: int) -> str:
    return f'style="stroke:var(--s{series % SERIES})"'


def _fill(series: int) -> str:
    return f'style="fill:var(--s{series % SERIES})"'


def swatch(series: int) -> str:
    """A short sample of a series' line, for a legend."""
    dash = DASHES[series % len(DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">'
        f'<path class="line" d="M1,5 L27,5" {_stroke(series)}{style}/></svg>'
    )
