"""What algorithms and codecs put on the wire for changes that are made of integers, without any training.

`tests/golden/replies.json` keeps digests of it, `tests/golden/make_replies.py` writes that file and
`tests/conformance/test_golden_replies.py` compares. How an `Algorithm` is driven is said in the four functions of the first
part and nowhere else: they are all that has to follow a change of its interface.

The digests do not depend on the processor, as far as that could be tried: kernels for SSE2 alone, torch without AVX2, and BLAS
libraries told to be those of old processors all make the same bytes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from codec_variants import VARIANTS, codec_of
from sketchfed import PublicSeed
from sketchfed.algorithms import ALGORITHMS, Algorithm, Change, Replica, RoundContext
from sketchfed.codecs import CODECS
from sketchfed.config import load_config
from sketchfed.subspaces import UPDATES
from sketchfed.vectors import flatten, load
from sketchfed.wire import Packet, pack, unpack

SEED = PublicSeed(7)
CLIENTS, ROUNDS = 3, 3
SHORTER = {"fedavg, prediction": 1, "fedavg, adagrad and prediction": 1}
"""Rounds of cases whose later ones depend on the processor: a product and a sum that some processors fuse."""

# --- how an algorithm is driven


def ready(algorithm: Algorithm, module: nn.Module) -> Algorithm:
    """The algorithm for a module and `CLIENTS` clients."""
    return algorithm.resolved(len(flatten(module)), CLIENTS, module)


def trained(algorithm: Algorithm, dim: int, index: int) -> int:
    """How many numbers a client trains in a round."""
    sketch = algorithm.given(SEED, index).sketch
    return dim if sketch is None else sketch.size


def reply(algorithm: Algorithm, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
    """What a client sends for a change, and what it keeps."""
    return algorithm.client(Change(change), memory, context)


def snapshot(algorithm: Algorithm, replica: Replica) -> Packet:
    """The whole model as clients are given it."""
    return algorithm.given(SEED, replica.round).packet(replica)


# --- what is played


def numbers(length: int, start: int) -> Tensor:
    """Numbers from -1/8 to 1/8 with a common part, in steps of 1/1024: float32 adds and squares them without rounding."""
    places = torch.arange(length)
    own, common = (places * 7919 + start * 104_729) % 129 - 64, places * 31 % 127 - 63
    return (own + common).to(torch.float32) / 1024


@cache
def module() -> nn.Module:
    """A perceptron of 4 by 4 pixels, 8 units and 3 outputs, with weights that no generator drew."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    return load(layers, numbers(len(flatten(layers)), 99))


def algorithm_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every algorithm, every codec in FedAvg, and what else can be set that changes bytes, as tables of a configuration."""
    needed = {"private_iterative": {"privacy": {"noise_multiplier": 1.0}}, "dome": {"subspace": {"size": 8}}}
    for name in (name for name, kind in ALGORITHMS.items() if kind.served):
        yield name, {"algorithm": {"name": name}, **needed.get(name, {})}
    for name, codec in CODECS.items():
        sized = {"ratio": 0.25} if name != "sketched" and "size" in {field.name for field in fields(codec)} else {}
        tables = {"codec": {"name": name, **sized}}
        yield f"fedavg, {name}", {"algorithm": {"name": "fedavg"}, **tables}
        yield f"fedavg, {name}, error feedback", {"algorithm": {"name": "fedavg", "error_feedback": True}, **tables}
    yield from {
        "fedavg, momentum": {"algorithm": {"name": "fedavg", "global_momentum": 0.5, "final_rate": 0.5}},
        "fedavg, prediction": {
            "algorithm": {"name": "fedavg", "prediction": True},
            "codec": {"name": "rand_k", "ratio": 0.25},
        },
        "fedavg, prediction and error feedback": {
            "algorithm": {"name": "fedavg", "prediction": True, "error_feedback": True},
            "codec": {"name": "rand_k", "ratio": 0.25},
        },
        "iterative, 4 bits": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.25, "bits": 4}},
        "iterative, 8 and 16 bits": {
            "algorithm": {"name": "iterative"},
            "sketch": {"ratio": 0.25, "bits": 8, "bits_down": 16},
        },
        "iterative, projection": {"algorithm": {"name": "iterative", "form": "projection"}, "sketch": {"ratio": 0.25}},
        "iterative, momentum": {
            "algorithm": {"name": "iterative", "global_momentum": 0.5},
            "sketch": {"name": "count", "ratio": 0.25},
        },
        "iterative, plain biases": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.25, "plain": ["*.bias"]}},
        "iterative, layers, 4 and 8 bits": {
            "algorithm": {"name": "iterative"},
            "sketch": {"ratio": 0.25, "blocks": "layer", "plain": ["3.bias"], "bits": 4, "bits_down": 8},
        },
        "iterative, groups, projection": {
            "algorithm": {"name": "iterative", "form": "projection"},
            "sketch": {"name": "count", "size": 40, "blocks": ["3.*"], "plain": ["*.bias"]},
        },
        "fedavg, sketched, layers, error feedback": {
            "algorithm": {"name": "fedavg", "error_feedback": True},
            "codec": {"name": "sketched"},
            "sketch": {"ratio": 0.25, "blocks": "layer", "plain": ["*.bias"], "bits": 8},
        },
        "fedavg, adam": {"algorithm": {"name": "fedavg", "server": "adam"}},
        "fedavg, adagrad and prediction": {
            "algorithm": {"name": "fedavg", "server": "adagrad", "prediction": True},
            "codec": {"name": "rand_k", "ratio": 0.25},
        },
        "iterative, yogi": {"algorithm": {"name": "iterative", "server": "yogi"}, "sketch": {"ratio": 0.25}},
        "iterative, adagrad, 8 bits": {
            "algorithm": {"name": "iterative", "server": "adagrad"},
            "sketch": {"ratio": 0.25, "bits": 8},
        },
        "dbcl, adam": {"algorithm": {"name": "dbcl", "server": "adam"}, "server": {"beta1": 0.5, "adaptivity": 0.01}},
        "fetchsgd, subtracted": {"algorithm": {"name": "fetchsgd", "masking": False, "rows": 3, "fetched": 7}},
        "dbcl, all sketched": {"algorithm": {"name": "dbcl", "output": "sketched", "biases": "sketched"}},
        "dbcl, withheld": {"algorithm": {"name": "dbcl", "output": "withheld", "biases": "withheld", "vary": 0.5}},
        **{f"dome, {rule}": {"algorithm": {"name": "dome"}, "subspace": {"name": rule, "size": 8}} for rule in UPDATES},
        "dome, whole": {"algorithm": {"name": "dome"}, "subspace": {"name": "whole"}},
        "dome, as printed": {
            "algorithm": {"name": "dome", "paper": True},
            "subspace": {"name": "history_pca", "size": 8},
        },
        "dome, centre": {
            "algorithm": {"name": "dome", "remove_mean": True},
            "subspace": {"name": "incremental_svd", "size": 8, "image": [4, 4], "frequencies": 6, "centre": True},
        },
    }.items()


ALGORITHM_CASES = dict(algorithm_cases())


def algorithm_bytes(case: str) -> dict[str, bytes]:
    """The first client's reply in each round, and what the server then sends: its update, if it has one, and the model."""
    sent: dict[str, bytes] = {}
    dim = len(flatten(module()))
    algorithm = ready(load_config(ALGORITHM_CASES[case] | {"data": {"clients": CLIENTS}}).algorithm, module())
    state = algorithm.begin(flatten(module()))
    memories: list[Tensor | None] = [None] * CLIENTS
    for index in range(SHORTER.get(case, ROUNDS)):
        packets = []
        for client in range(CLIENTS):
            context = RoundContext(round=index, seed=SEED, client=client, replica=state.replica, population=CLIENTS)
            change = numbers(trained(algorithm, dim, index), start=10 * index + client)
            packet, memories[client] = reply(algorithm, change, memories[client], context)
            packets.append(packet)
            algorithm.check(packet, dim, context)
        state, update = algorithm.server(state, packets, SEED)
        sent[f"reply {index + 1}"] = pack(packets[0].stamped(round=index))
        if update is not None:
            sent[f"update {index + 1}"] = pack(update.stamped(round=index))
        sent[f"model {index + 1}"] = pack(snapshot(algorithm, state.replica))
    return sent


def codec_bytes(variant: str) -> dict[str, bytes]:
    """The packets of five clients and what is decoded from them, in two rounds of which the second may know of the first."""
    codec, sent, knowledge = codec_of(variant), {}, None
    for index in range(2):
        seed = SEED.child("round", index)
        rows = [numbers(codec.dim, start=10 * index + client) for client in range(5)]
        packets = [codec.encode(row, seed, client) for client, row in enumerate(rows)]
        sent[f"packets {index + 1}"] = b"".join(map(pack, packets))
        packets = [unpack(pack(packet)) for packet in packets]
        sent[f"mean {index + 1}"] = _raw([codec.decode(packets, seed, knowledge)])
        knowledge = codec.learn(packets, seed, knowledge)
    return sent


def _raw(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)


def digests(sent: dict[str, bytes]) -> dict[str, str]:
    """For each of the bytes, how many they are and the beginning of their digest."""
    return {name: f"{len(data)} {hashlib.sha256(data).hexdigest()[:24]}" for name, data in sent.items()}


def everything() -> dict[str, dict[str, dict[str, str]]]:
    """The contents of `replies.json`."""
    return {
        "algorithms": {case: digests(algorithm_bytes(case)) for case in ALGORITHM_CASES},
        "codecs": {variant: digests(codec_bytes(variant)) for variant in VARIANTS},
    }
