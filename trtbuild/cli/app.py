"""Placeholder until the commands land."""


def main() -> None: ...
