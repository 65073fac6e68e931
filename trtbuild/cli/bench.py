EXAMPLE = "trtbuild bench"


def bench() -> None:
    """To come."""
