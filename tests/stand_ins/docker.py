"""A stand-in for `docker run`: takes the options trtbuild may give, undoes the mounts, runs the command outside."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

from common import record_call

VALUES = ("--gpus", "--ipc", "--ulimit", "--user", "--env", "--workdir", "--mount", "--tmpfs")


def main() -> None:
    record_call()
    words = sys.argv[1:]
    assert words.pop(0) == "run", words
    mounts: list[tuple[str, str]] = []
    while words[0].startswith("--"):
        option = words.pop(0)
        if option == "--rm":
            continue
        assert option in VALUES, f"docker has no {option} in this test"
        value = words.pop(0)
        if option == "--mount":
            (fields,) = csv.reader([value])
            pairs = dict(field.split("=", 1) for field in fields if "=" in field)
            assert os.path.isdir(pairs["source"]), pairs  # noqa: PTH112
            mounts.append((pairs["target"], pairs["source"]))
    image = words.pop(0)
    os.environ["STAND_IN_VERSION"] = image.rsplit(":", 1)[1]
    for target, source in sorted(mounts, key=lambda m: -len(m[0])):
        words = [
            source + word[len(target) :] if word == target or word.startswith(f"{target}/") else word for word in words
        ]
    sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
