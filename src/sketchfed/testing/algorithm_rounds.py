"""What every algorithm must do in rounds: alone, protected, with absent clients and with spoiled replies."""

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.algorithms.replicas import to_tensors
from sketchfed.errors import InputError
from sketchfed.rounds.server import Server
from sketchfed.testing.algorithm_cases import PROTECTIONS, AlgorithmSuite, code_of, same, started
from sketchfed.testing.federation import Apart, Tap, advanced, weights_of
from sketchfed.wire import Bits, Packet, pack, unpack

Spoil = Callable[[bytes], bytes | None]
"""What becomes of a reply; None where this way of spoiling does not apply."""


def _packet(edit: Callable[[Packet], Packet]) -> Spoil:
    return lambda reply: pack(edit(unpack(reply)))


def _arrays(edit: Callable[[Tensor | Bits], Tensor | Bits]) -> Callable[[Packet], Packet]:
    return lambda packet: replace(packet, arrays={name: edit(array) for name, array in packet.arrays.items()})


def _longer(array: Tensor | Bits) -> Tensor | Bits:
    if isinstance(array, Bits):
        return Bits(torch.zeros(array.shape[0] + 1).long(), bits=array.bits)
    return torch.zeros(array.numel() + 1, dtype=array.dtype)


def _not_finite(reply: bytes) -> bytes | None:
    """NaN as the last number, under a checksum that holds."""
    last = list(unpack(reply).arrays.values())[-1:]
    if not last or isinstance(last[0], Bits) or last[0].dtype != torch.float32:
        return None
    body = reply[:-4] + struct.pack("<f", math.nan)
    return body[:16] + struct.pack("<I", zlib.crc32(body[20:], zlib.crc32(body[:16]))) + body[20:]


def _wild(reply: bytes) -> bytes | None:
    packet = unpack(reply)
    if any(isinstance(array, Bits) or not array.is_floating_point() for array in packet.arrays.values()):
        return None
    return pack(_arrays(lambda array: torch.full(tuple(array.shape), 1e30))(packet))


SPOILED: dict[str, Spoil] = {
    "garbage": lambda reply: Random(1).randbytes(len(reply)),
    "nothing": lambda reply: b"",
    "torn": lambda reply: reply[:-1],
    "another shape": _packet(_arrays(_longer)),
    "another type": _packet(_arrays(lambda array: torch.zeros(tuple(array.shape), dtype=torch.float64))),
    "no arrays": _packet(lambda packet: replace(packet, arrays={})),
    "another kind": _packet(lambda packet: replace(packet, kind="other")),
    "another round": _packet(lambda packet: packet.stamped(round=7)),
    "many clients": _packet(lambda packet: replace(packet, clients=1_000)),
    "not a number": _not_finite,
    "1e30": _wild,
}


class AlgorithmRounds(AlgorithmSuite):
    """Rounds of four clients."""

    def test_rounds_change_the_weights_and_equal_seeds_give_equal_bits(self, algorithm: Algorithm) -> None:
        """Rounds change the weights to finite ones, and equal seeds give equal weights bit for bit."""
        begun = weights_of(started(algorithm)).clone()
        one, other = (advanced(started(algorithm), 3) for _ in range(2))
        assert one.round == 3
        assert torch.isfinite(weights_of(one)).all()
        assert not torch.equal(weights_of(one), begun)
        assert torch.equal(weights_of(one), weights_of(other))

    @pytest.mark.parametrize("protection", PROTECTIONS)
    def test_a_protection_works_or_is_refused_before_the_first_round(self, algorithm: Algorithm, protection: str) -> None:
        """An algorithm with a linear code runs under every kind of noise and under secure sums.

        Without one it runs with noise in local steps, and everything else is refused before round 1 with the reason.
        """
        protected = PROTECTIONS[protection]
        alone = protected.secure is None and protected.privacy is not None and protected.privacy.placement == "steps"
        runs = (alone or code_of(algorithm) is not None) and not (
            protected.privacy is not None and protected.privacy.placement in algorithm.refused_placements
        )
        if not runs:
            with pytest.raises(InputError):
                started(algorithm, protected)
            return
        server = advanced(started(algorithm, protected), 2)
        assert server.round == 2
        assert torch.isfinite(weights_of(server)).all()
        assert (server.epsilon is None) == (protected.privacy is None)
        assert server.epsilon is None or 0 < server.epsilon < math.inf

    def test_clients_that_come_back_hold_what_the_server_holds(self, algorithm: Algorithm) -> None:
        """A client that missed rounds comes back to the same replica, bit for bit, as one that never missed any."""
        server = started(replace(algorithm, participation=0.5), apart=True)
        joint = started(replace(algorithm, participation=0.5))
        missed = False
        for _ in range(6):
            asked, expected = server.cohort(), _held(server)
            apart = _engine(server)
            missed |= any(held is not None and held.round < server.round - 1 for held in map(apart.replicas.get, asked))
            server.advance()
            joint.advance()
            for client in asked:
                held = apart.replicas[client]
                assert held is not None
                assert held.round == expected.round
                wanted, found = to_tensors(expected), to_tensors(held)  # a first replica may hold more than a whole model shows
                assert same({name: found[name] for name in wanted}, wanted), f"client {client} in round {held.round}"
        assert missed, "nobody missed a round, so this check says nothing"
        assert torch.equal(weights_of(server), weights_of(joint))

    @pytest.mark.parametrize("way", SPOILED)
    def test_spoiled_replies_are_dropped(self, algorithm: Algorithm, way: str) -> None:
        """A spoiled reply is refused by `check`, and the round ends as if that client had not answered, bit for bit."""
        honest, attacked = (advanced(started(algorithm), 1) for _ in range(2))
        sent = attacked.engine
        assert isinstance(sent, Tap)
        spoiled = SPOILED[way](sent.replies[-1][1])
        if spoiled is None or (way == "1e30" and _norm(attacked) is None):
            pytest.skip("these packets have no such numbers, or no norm that could be compared")
        _tampered(honest, lambda replies: {client: reply for client, reply in replies.items() if client != 1})
        _tampered(attacked, lambda replies: replies | {1: SPOILED[way](replies[1]) or b""})
        assert torch.equal(weights_of(attacked), weights_of(honest))
        assert (attacked.tally.refused, honest.tally.refused) == (1, 0)
        for server in (honest, attacked):
            server.advance()
        assert torch.equal(weights_of(attacked), weights_of(honest))


def _engine(server: Server) -> Apart:
    assert isinstance(server.engine, Tap)
    assert isinstance(server.engine.inner, Apart)
    return server.engine.inner


def _held(server: Server) -> Replica:
    """What a client holds that is at the server's round."""
    if server.algorithm.incremental:
        return server.state.replica
    form = server.algorithm.given(server.seed, server.round)
    return form.replica(form.packet(server.state.replica), len(weights_of(server)))


def _norm(server: Server) -> float | None:
    """The norm by which an honest reply of the last round is screened."""
    assert isinstance(server.engine, Tap)
    packet = unpack(server.engine.replies[-1][1])
    return started(server.algorithm)._read(pack(packet), 1)[1] if server.round == 1 else None


def _tampered(server: Server, tamper: Callable[[dict[int, bytes]], dict[int, bytes]]) -> None:
    """One round with changed replies."""
    assert isinstance(server.engine, Tap)
    server.engine.tamper = tamper
    server.advance()
    server.engine.tamper = dict
