EXAMPLE = "trtbuild plan"


def plan() -> None:
    """To come."""
