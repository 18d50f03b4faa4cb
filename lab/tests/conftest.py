from fixtures import one_thread_a_worker, warnings_are_heard  # noqa: F401
