"""A trial of parts that others brought, before the first round: does one round give the same bits twice?

Clients and the server compute the same maps on different machines, from the seed alone. A part that draws elsewhere, such as
from the generator of torch, would train on noise without a word.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from sketchfed.algorithms import Algorithm, Change, CodecSettings, RoundContext, ServerSettings, SketchSettings, State
from sketchfed.caches import clear_caches
from sketchfed.codecs import CODECS
from sketchfed.errors import FaultyPartError, SketchfedError, WireError
from sketchfed.rounds.stepping import checked_step
from sketchfed.seeds import PublicSeed
from sketchfed.server_optimisers import SERVER_OPTIMISERS
from sketchfed.sketches import SKETCHES
from sketchfed.wire import Packet, pack, unpack

_BITS = (
    "for the same input and the same seed. Draw from the seed alone, with `sketchfed.draws`, and keep nothing between rounds"
)


def try_parts(algorithm: Algorithm, state: State, seed: PublicSeed, population: int) -> None:
    """Raise `FaultyPartError` if a part that somebody brought fails in a first round of one client.

    The client encodes the same change twice and the server steps twice. In between, everything that is kept in memory is
    forgotten, as if two machines did it. Algorithms that consist of built-in parts are not tried.
    """
    brought = list(_brought(algorithm))
    if not brought or not algorithm.given(seed, state.replica.round).trains:
        return
    trial = _Trial(algorithm, brought, state, seed, population)
    packets = [trial.encoded() for _ in range(2)]
    if pack(packets[0]) != pack(packets[1]):
        raise trial.fault(f"encoded other bytes the second time {_BITS}")
    trial.check(packets[0])
    steps = [trial.stepped(packets[0]) for _ in range(2)]
    if not torch.equal(*(after.replica.weights for after, _ in steps)):
        raise trial.fault(f"gave other weights the second time {_BITS}")
    trial.follow(*steps[0])


class _Trial:
    """The first round of one client."""

    def __init__(
        self, algorithm: Algorithm, brought: list[tuple[str, type]], state: State, seed: PublicSeed, population: int
    ) -> None:
        self.algorithm, self.brought, self.state, self.seed = algorithm, brought, state, seed
        self.dim = len(state.replica.weights)
        self.form = algorithm.given(seed, state.replica.round)
        replica = self.form.replica(self.form.packet(state.replica), self.dim)
        self.context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica, population=population)

    def encoded(self) -> Packet:
        """What a client sends for a change of which no two numbers are equal."""
        change = torch.linspace(-1.0, 1.0, self.dim if self.form.sketch is None else self.form.sketch.size)
        try:
            return self._new().client(Change(change), None, self.context)[0]
        except SketchfedError:
            raise
        except Exception as error:
            raise self.fault(f"raised {type(error).__name__}: {error}, when a client encoded a change") from error

    def check(self, packet: Packet) -> None:
        try:
            self.algorithm.check(packet, self.dim, self.context)
        except WireError as error:
            raise self.fault(f"refuses a packet that its own client made: {str(error).rstrip('.')}") from error

    def stepped(self, packet: Packet) -> tuple[State, Packet | None]:
        """What the server makes of a packet."""
        return checked_step(self._new(), self.state, [packet], self.seed, noise=0.0)

    def follow(self, after: State, update: Packet | None) -> None:
        """Check that a client that gets the update holds what the server holds."""
        if update is None:
            return
        received = unpack(pack(update.stamped(round=self.state.replica.round)))
        found = self._new().follow(self.state.replica, received, self.seed)
        if not torch.equal(found.weights, after.replica.weights):
            raise self.fault("gave clients that `follow` an update other weights than the server has after `server`")

    def fault(self, what: str) -> FaultyPartError:
        """The error that names the part. If several were brought, it names all of them."""
        (kind, part), *others = self.brought
        also = "".join(
            f"or {other} '{getattr(each, 'name', '')}' ({each.__module__}.{each.__qualname__}) " for other, each in others
        )
        return FaultyPartError(part, kind, f"{also}{what}")

    def _new(self) -> Algorithm:
        """The algorithm as another machine would make it."""
        clear_caches()
        return replace(self.algorithm)


def _brought(algorithm: Algorithm) -> Iterator[tuple[str, type]]:
    """The sketch, the codec, the server optimiser and the algorithm, as far as they are not built in, each with its kind."""
    for settings in algorithm.tables.values():
        if isinstance(settings, SketchSettings) and settings.name not in SKETCHES.built_in:
            yield "sketch", SKETCHES[settings.name]
        if isinstance(settings, CodecSettings) and settings.name not in CODECS.built_in:
            yield "codec", CODECS[settings.name]
        if isinstance(settings, ServerSettings) and settings.name not in SERVER_OPTIMISERS.built_in:
            yield "server optimiser", SERVER_OPTIMISERS[settings.name]
    if not type(algorithm).__module__.startswith("sketchfed."):
        yield "algorithm", type(algorithm)
