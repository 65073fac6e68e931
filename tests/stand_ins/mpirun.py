"""A stand-in for mpirun: `-n N` and `--allow-run-as-root`, then the command once."""

from __future__ import annotations

import subprocess
import sys

from common import record_call


def main() -> None:
    record_call()
    words = sys.argv[1:]
    while words[0].startswith("-"):
        option = words.pop(0)
        if option == "-n":
            assert int(words.pop(0)) >= 1
        else:
            assert option == "--allow-run-as-root", option
    sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
