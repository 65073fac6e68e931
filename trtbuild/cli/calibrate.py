EXAMPLE = "trtbuild calibrate"


def calibrate() -> None:
    """To come."""
