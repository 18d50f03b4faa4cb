"""Repeated mean estimation between clients and a server in one process, with real packets."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.codecs.prediction import prediction_gain
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, unpack


class Channel:
    """Rounds of mean estimation with one codec: every vector is packed to bytes, counted, unpacked and decoded.

    Round t draws from `seed.child("round", t)`. The codec can use what it learned from one round's packets in the next round.

    With `error_feedback`, each client keeps the error of its packet and adds it to its next vector (`codecs.feedback`).

    With `prediction`, clients encode the difference between their vector and a prediction, and the server adds the prediction
    to the decoded mean, as in Rand-k-Temporal (Jhunjhunwala et al. 2021). Whatever stays the same from round to round then
    causes no error. All clients share one prediction, which they can compute as well as the server can. It follows the
    decoded means as fast as possible without letting errors grow (`codecs.prediction`).

    >>> from sketchfed.codecs import make_codec
    >>> channel = Channel(make_codec("dense", dim=3), PublicSeed(7))
    >>> channel.mean(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([2., 2., 2.])
    >>> channel.rounds, channel.bytes_sent
    (1, 112)
    """

    def __init__(self, codec: Codec, seed: PublicSeed, *, error_feedback: bool = False, prediction: bool = False) -> None:
        if not isinstance(codec, Codec) or not isinstance(seed, PublicSeed):
            raise InputError(
                f"a channel needs a codec and a seed, got {type(codec).__name__} and {type(seed).__name__}. Write "
                'Channel(make_codec("rand_k", dim=1024, size=32), PublicSeed(7)).'
            )
        self.codec, self.seed = codec, seed
        self.error_feedback, self.prediction = error_feedback, prediction
        self.rounds = 0
        self.bytes_sent = 0
        """The number of bytes that all clients together have sent."""
        self._lanes: list[_Lane] = []
        self._gains: dict[int, float] = {}

    def mean(self, vectors: Tensor, present: Tensor | None = None) -> Tensor:
        """Run one round and return the estimated mean `(dim,)` of the clients' vectors `(clients, dim)`.

        If each client has several vectors, `(clients, number, dim)`, each vector is encoded separately and the means have
        shape `(number, dim)`. Memory, prediction and the codec's knowledge are kept for each vector. `present`, of shape
        `(clients,)` or `(clients, number)`, says which vectors take part. The others are not sent and do not count. If no
        vector takes part, the mean is 0.
        """
        there = torch.ones(vectors.shape[:-1], dtype=torch.bool) if present is None else present
        self._check(vectors, there)
        lanes = vectors.detach().to(torch.float32).reshape(len(vectors), -1, self.codec.dim)
        here = there.reshape(len(vectors), -1)
        self._lanes = self._lanes or [_Lane(clients=len(lanes)) for _ in range(lanes.shape[1])]
        if len(self._lanes) != lanes.shape[1] or self._lanes[0].clients != len(lanes):
            raise InputError(
                f"the first round had {self._lanes[0].clients} clients with {len(self._lanes)} vectors each, but this one has "
                f"{len(lanes)} with {lanes.shape[1]}. A channel remembers each client, so these numbers must not change. Use "
                "`present` to leave vectors out, or another channel."
            )
        seed = self.seed.child("round", self.rounds)
        seeds = [seed] if vectors.ndim == 2 else [seed.child("vector", number) for number in range(lanes.shape[1])]
        means = [self._estimate(lane, lanes[:, i], here[:, i], seeds[i]) for i, lane in enumerate(self._lanes)]
        self.rounds += 1
        return torch.stack(means).reshape(vectors.shape[1:])

    def _check(self, vectors: Tensor, present: Tensor) -> None:
        dim = self.codec.dim
        if vectors.ndim not in (2, 3) or vectors.shape[-1] != dim or 0 in vectors.shape:
            raise InputError(
                f"a channel takes vectors of shape (clients, {dim}) or (clients, number, {dim}), got {tuple(vectors.shape)}."
            )
        if present.dtype != torch.bool or present.shape != vectors.shape[:-1]:
            raise InputError(
                f"present must say for each vector whether it takes part, as bool of shape {tuple(vectors.shape[:-1])}, got "
                f"{present.dtype} of shape {tuple(present.shape)}."
            )

    def _estimate(self, lane: "_Lane", vectors: Tensor, present: Tensor, seed: PublicSeed) -> Tensor:
        base, clients = lane.prediction, present.nonzero().flatten().tolist()
        if not clients:
            return torch.zeros(self.codec.dim)
        wanted = vectors if base is None else vectors - base
        packets = [self._sent(lane, client, wanted[client], seed) for client in clients]
        new = self.codec.decode(packets, seed, lane.knowledge)
        lane.knowledge = self.codec.learn(packets, seed, lane.knowledge)
        if self.error_feedback:
            new = self.codec.shrinkages * new
        if self.prediction:
            gain = self._gain(len(clients))
            lane.prediction = gain * new if base is None else base + gain * new
        return new if base is None else base + new

    def _gain(self, clients: int) -> float:
        if clients not in self._gains:
            self._gains[clients] = prediction_gain(self.codec, clients=clients, error_feedback=self.error_feedback)
        return self._gains[clients]

    def _sent(self, lane: "_Lane", client: int, x: Tensor, seed: PublicSeed) -> Packet:
        """Encode and send a client's vector, and return the packet as the server receives it."""
        if self.error_feedback:
            packet, lane.memories[client] = encode_with_memory(self.codec, x, lane.memories.get(client), seed, client)
        else:
            packet = self.codec.encode(x, seed, client)
        data = pack(self.codec.bare(packet))
        self.bytes_sent += len(data)
        arrived = unpack(data)
        if self.codec.norm_bound is not None:
            self.codec.check(arrived, client, seed)
        return arrived


@dataclass(kw_only=True)
class _Lane:
    """What the channel remembers between rounds. There is one lane for each vector that a client holds."""

    clients: int
    knowledge: Tensor | None = None
    prediction: Tensor | None = None
    memories: dict[int, Tensor] = field(default_factory=dict)
