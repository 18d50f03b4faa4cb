"""The tables and the picture of `audit-neighbours`."""


def write(rows, folder):
    """Written later."""
