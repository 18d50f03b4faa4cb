import logging
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is there: workers share the cores already

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread_a_worker():
    """Test workers share the cores already; threads of torch on top of that only fight."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _warnings_are_heard():
    """An example of the docs silences warnings for all that comes after it in the same process."""
    logging.getLogger("sketchfed").setLevel(logging.NOTSET)
