from importlib.util import find_spec

from fixtures import in_a_run  # noqa: F401

collect_ignore_glob = [] if find_spec("flwr") else ["test_node_*.py"]
