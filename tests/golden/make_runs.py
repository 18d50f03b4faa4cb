"""Make the folders in `runs/`: runs that an earlier version of sketchfed began, was interrupted in, and could finish.

`tests/runs/test_old_folders.py` finishes each of them with the code of today and expects what the earlier version came to. The
folders that are there were written by version 0.1.0 (commit 7718101), the last one before the packages were restructured. Make
them again only when a release is allowed to break old folders, with the code of the last version that may be resumed:

    git worktree add ../old COMMIT
    PYTHONPATH=../old/src python tests/golden/make_runs.py

A run is interrupted in the middle of a round, after `DONE` rounds were saved: clients have answered, and nothing has been made
of their answers. `expected.json` in each folder says what the same version came to when it resumed the folder: the digest of
the weights, the weights, and all lines of metrics but for their seconds.

Training multiplies matrices by torch, and processors do that in different orders. So a result is compared to the last bit only
where `fingerprint()` is what it was when the folders were made, and otherwise within a tolerance.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import sketchfed

RUNS = Path(__file__).parent / "runs"
EXPECTED = "expected.json"
ROUNDS, DONE = 5, 3
COMMON = {"rounds": ROUNDS, "local_steps": 2, "batch": 8, "local_rate": 0.2}
HALF = {"participation": 0.5}
NOISE = {"noise_multiplier": 0.5, "delta": 1e-4, "clip": 0.2, "insecure_noise_seed": 5}
PER_EXAMPLE = NOISE | {"unit": "example", "clip": 1.8}
ONE_STEP = {"local_steps": 1, "local_rate": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg", "global_momentum": 0.5, "final_rate": 0.5}},
    "fedavg-saved-nothing": {"algorithm": {"name": "fedavg"}, "engine": {"checkpoint_seconds": 1e9}},
    "fedavg-recorded": {"algorithm": {"name": "fedavg", **HALF}, "engine": {"record": True}},
    "fedavg-error-feedback": {
        "algorithm": {"name": "fedavg", "error_feedback": True, **HALF},
        "codec": {"name": "top_k", "ratio": 0.1},
    },
    "fedavg-prediction": {
        "algorithm": {"name": "fedavg", "prediction": True},
        "codec": {"name": "rand_k", "ratio": 0.3},
    },
    "fedavg-sketched": {
        "algorithm": {"name": "fedavg"},
        "codec": {"name": "sketched"},
        "sketch": {"ratio": 0.3, "bits": 8},
    },
    "fedavg-learning-codec": {
        "algorithm": {"name": "fedavg"},
        "codec": {"name": "rand_proj_spatial", "ratio": 0.2, "correlation": "estimated"},
    },
    "fedavg-trusted-server": {
        "algorithm": {"name": "fedavg", **HALF},
        "privacy": {**NOISE, "observer": "public", "hidden_cohorts": True},
    },
    "iterative-few-bits": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.2, "bits": 4}},
    "iterative-projection": {
        "algorithm": {"name": "iterative", "form": "projection", **HALF},
        "sketch": {"ratio": 0.3, "bits": 8, "bits_down": 16},
    },
    "iterative-catching-up": {
        "seed": 5,  # by its cohorts, both clients of round 4 have taken part before and missed a different number of rounds
        "algorithm": {"name": "iterative", "global_momentum": 0.5, **HALF},
        "sketch": {"ratio": 0.2},
    },
    "iterative-private-sent": {
        "algorithm": {"name": "iterative", **ONE_STEP},
        "sketch": {"ratio": 0.2},
        "privacy": PER_EXAMPLE,
    },
    "iterative-passes": {
        "algorithm": {"name": "iterative", **ONE_STEP, "batch": 180},
        "sketch": {"ratio": 0.2},
        "privacy": {**PER_EXAMPLE, "batches": "passes"},
    },
    "iterative-secure": {
        "algorithm": {"name": "iterative"},
        "sketch": {"ratio": 0.2},
        "privacy": {**NOISE, "name": "discrete_gaussian"},
        "secure": {"survivors": 0.75},
        "engine": {"record": True},
    },
    "private_iterative": {"algorithm": {"name": "private_iterative"}, "sketch": {"ratio": 0.2}, "privacy": PER_EXAMPLE},
    "fetchsgd": {"algorithm": {"name": "fetchsgd", "rows": 3}, "sketch": {"name": "count", "ratio": 0.3}},
    "dbcl-public-start": {
        "algorithm": {"name": "dbcl", "public_start": True, "global_momentum": 0.5, "vary": 0.3, **HALF},
        "sketch": {"ratio": 0.5},
    },
    "dbcl-secret-start": {"algorithm": {"name": "dbcl", "output": "sketched", "biases": "sketched"}},
    "dome-adaptive": {"algorithm": {"name": "dome", **HALF}, "subspace": {"name": "incremental_svd", "size": 12}},
    "dome-printed": {
        "algorithm": {"name": "dome", "paper": True, "global_rate": 0.01},
        "subspace": {"name": "history_pca", "size": 12},
    },
    "dome-centre": {
        "algorithm": {"name": "dome"},
        "subspace": {"name": "incremental_svd", "size": 12, "image": [8, 8], "frequencies": 12, "centre": True},
    },
}


class UnpluggedError(Exception):
    """What ends a run in the middle of a round."""


def tables(kind: str) -> dict[str, Any]:
    """The configuration of a kind of run: the embedded digits, a model of 310 parameters and four clients."""
    own = KINDS[kind]
    return {
        "name": kind,
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "mlp", "hidden": [4]},
        **own,
        "algorithm": COMMON | own["algorithm"],
        "engine": {"checkpoint_seconds": 0.0, "workers": 1} | own.get("engine", {}),
    }


def result(run: sketchfed.Run) -> dict[str, Any]:
    """What a run came to, for comparison."""
    weights = run.weights.contiguous().numpy().astype("<f4").tobytes()
    lines = [{name: value for name, value in line.items() if name != "seconds"} for line in run.metrics]
    return {"digest": hashlib.sha256(weights).hexdigest(), "weights": b64encode(weights).decode(), "metrics": lines}


def fingerprint() -> str:
    """A digest of what this processor and this torch make of products and sums like those of the runs, of any width."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        digest = hashlib.sha256()
        for made in _products():
            digest.update(made.contiguous().numpy().tobytes())
        return digest.hexdigest()
    finally:
        torch.set_num_threads(before)


def _products() -> Iterator[torch.Tensor]:
    for rows in (1, 8, 50, 180, 359):
        for inputs in range(2, 65):  # client forms of the model and subspaces have widths of their own
            x = _numbers(rows, inputs)
            for outputs in (4, 10):
                weight, delta = _numbers(outputs, inputs), _numbers(rows, outputs)
                yield torch.addmm(weight[:, 0], x, weight.t())
                yield torch.addmm(weight, delta.t(), x)
                yield torch.mm(delta, weight)
            yield from (x.sum(0), x.square().sum(1), x.norm(), torch.softmax(x, 1))
        logits = _numbers(rows, 10)
        yield functional.cross_entropy(logits, torch.arange(rows) % 10)
    for length in range(1, 400):
        yield from (_numbers(1, length).norm(), _numbers(1, length).sum())


def _numbers(rows: int, columns: int) -> torch.Tensor:
    """Numbers from -1 to 1 whose sums need rounding, from integers: the same everywhere."""
    return (torch.arange(rows * columns) * 7907 % 10_007).reshape(rows, columns).float() / 5_003 - 1


def make(kind: str, folder: Path) -> None:
    """Begin a run of a kind, interrupt it, and write down what it comes to when it is resumed."""

    def unplug(exchanges: Any) -> None:
        if exchanges[0].round == DONE:
            raise UnpluggedError

    try:
        sketchfed.run(tables(kind), folder=folder, on_exchange=unplug)
    except UnpluggedError:
        pass
    else:
        raise AssertionError(f"{kind} was not interrupted")
    (folder / ".lock").unlink()
    with tempfile.TemporaryDirectory() as elsewhere:
        copy = Path(shutil.copytree(folder, Path(elsewhere) / kind))
        expected = result(sketchfed.resume(copy))
        if (copy / "wire.bin").exists():
            expected["wire"] = hashlib.sha256((copy / "wire.bin").read_bytes()).hexdigest()
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    for kind in sys.argv[1:] or KINDS:
        shutil.rmtree(RUNS / kind, ignore_errors=True)
        make(kind, RUNS / kind)
    (RUNS / "processor.json").write_text(
        json.dumps({"fingerprint": fingerprint(), "torch": torch.__version__}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
