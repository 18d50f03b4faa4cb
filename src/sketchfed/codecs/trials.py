"""Measures a codec on given vectors over consecutive rounds: error, bytes and time."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median, stdev
from time import perf_counter

from threadpoolctl import threadpool_limits
from torch import Tensor

from sketchfed.codecs.base import Codec
from sketchfed.codecs.examples import correlation_of
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, pack, unpack


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The measured error ‖decoded − mean‖² with its standard error, the predicted error, bytes per client and seconds."""

    error: float
    standard_error: float | None
    """None after a single trial."""
    predicted: float | None
    """The error that `codec.mse` predicts for these vectors."""
    bytes: float
    """The mean length of a client's packet, without what the envelope already contains."""
    bits: int
    """Bits per number in the packets' array `values`. Without such an array, bits per number in the widest array."""
    encode_seconds: float
    """The median time to encode the vector of one client."""
    decode_seconds: float
    """The median time to decode all packets of a round."""
    trials: int


def measure(
    codec: Codec, vectors: Tensor, *, trials: int, seed: PublicSeed, watch: Callable[[], None] = lambda: None
) -> Trials:
    """Send the vectors `(clients, dim)` through a codec `trials` times, each time with a different seed.

    Packets are converted to bytes and read back. The server may use what it learned in one round in the next round. An extra
    round comes first and is not measured. It gives the server something to learn from, and compiles the kernels. `watch` is
    called after each round.
    """
    check_trials(trials)
    with one_core():
        return _measure(codec, vectors, trials, seed, watch)


def _measure(codec: Codec, vectors: Tensor, trials: int, seed: PublicSeed, watch: Callable[[], None]) -> Trials:
    truth = vectors.double().mean(0)
    errors, lengths, encoding, decoding = [], [], [], []
    knowledge: Tensor | None = None
    for trial in range(trials + 1):
        round_seed = seed.child("trial", trial)
        packets = []
        for client, vector in enumerate(vectors):
            start = perf_counter()
            packet = codec.encode(vector, round_seed, client)
            encoding.append(perf_counter() - start)
            data = pack(codec.bare(packet))
            lengths.append(len(data))
            packets.append(unpack(data))
        start = perf_counter()
        decoded = codec.decode(packets, round_seed, knowledge)
        decoding.append(perf_counter() - start)
        knowledge = codec.learn(packets, round_seed, knowledge)
        errors.append(float((decoded.double() - truth).square().sum()))
        watch()
    clients = len(vectors)
    return Trials(
        error=mean(errors[1:]),
        standard_error=stdev(errors[1:]) / math.sqrt(trials) if trials > 1 else None,
        predicted=codec.mse(float(vectors.double().square().sum()), correlation_of(vectors)),
        bytes=mean(lengths[clients:]),
        bits=_width(packets[0].arrays),
        encode_seconds=median(encoding[clients:]),
        decode_seconds=median(decoding[1:]),
        trials=trials,
    )


def _width(arrays: Mapping[str, Tensor | Bits]) -> int:
    widths = {name: a.bits if isinstance(a, Bits) else 8 * a.itemsize for name, a in arrays.items()}
    return widths.get("values", max(widths.values()))


def squared_errors(codec: Codec, vectors: Tensor, *, trials: int, seed: PublicSeed) -> list[float]:
    """‖decoded − mean‖² for each trial. Packets are not converted to bytes, and trials do not learn from each other."""
    check_trials(trials)
    truth, errors = vectors.double().mean(0), []
    with one_core():
        for trial in range(trials):
            round_seed = seed.child("trial", trial)
            packets = [codec.encode(vector, round_seed, client) for client, vector in enumerate(vectors)]
            errors.append(float((codec.decode(packets, round_seed).double() - truth).square().sum()))
    return errors


@contextmanager
def one_core() -> Iterator[None]:
    """Run torch and BLAS with one thread. More threads do not help small problems, and are far slower if cores are busy."""
    with threadpool_limits(1):
        yield


def check_trials(trials: int) -> None:
    if type(trials) is not int or trials < 1:
        raise InputError(f"trials must be a positive integer, got {trials!r}.")
