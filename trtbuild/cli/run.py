EXAMPLE = "trtbuild run"


def run() -> None:
    """To come."""
