"""The self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def html_report(document: Mapping[str, Any]) -> str:
    """To come in this commit series."""
    return f"<!doctype html><title>{document['profile']['name']}</title>"
