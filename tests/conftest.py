import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is there: workers share the cores already

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread_a_worker():
    """Test workers share the cores already; threads of torch on top of that only fight."""
    torch.set_num_threads(1)
