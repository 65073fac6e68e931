"""Files that belong to the package: the built-in text and the profiles.

In the repository `calibration` and `profiles` here are links to the folders at its top; a wheel holds copies.
"""

from __future__ import annotations

from pathlib import Path

CALIBRATION = Path(__file__).parent / "calibration"
PROFILES = Path(__file__).parent / "profiles"
