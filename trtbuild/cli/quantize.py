EXAMPLE = "trtbuild quantize"


def quantize() -> None:
    """To come."""
