EXAMPLE = "trtbuild doctor"


def doctor() -> None:
    """To come."""
