from fixtures import warnings_are_heard  # noqa: F401
