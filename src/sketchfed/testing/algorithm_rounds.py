"""What every algorithm must do in rounds: alone, protected, with absent clients and with spoiled replies."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.algorithms.forms import seen
from sketchfed.devices import CPU
from sketchfed.rounds.server import Server
from sketchfed.runs import Run
from sketchfed.testing.algorithm_cases import PROTECTIONS, AlgorithmSuite, refusal, started
from sketchfed.testing.algorithm_faults import ABSENT, ROUNDS, SPOILT, FaultyRun, check_refused, config_of, interrupted, whole
from sketchfed.testing.algorithm_views import check_views
from sketchfed.testing.federation import Apart, Tap, advanced, weights_of
from sketchfed.testing.spoiled import SPOILED
from sketchfed.testing.suite import other_device
from sketchfed.wire import pack, unpack

ON_DEVICES = ("noise in local steps", "noise on what examples send", "secure sums")
"""The protections that are tried on another device, besides none."""


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
    def test_a_protection_works_or_is_refused_before_the_first_round(
        self, algorithm: Algorithm, protection: str, tmp_path: Path
    ) -> None:
        """With a linear code, a run works under every kind of noise and under secure sums, also if clients fail or it stops.

        In one round a client is absent. In another round its reply is spoiled, in a different way for each protection. Both
        rounds go on with the others. A second run is interrupted in the middle of the latter round and resumed from its folder.
        If that client is absent there, the run ends with the same weights and the same ε, bit for bit, or up to rounding if
        secure sums draw it in secret. Views of an audit show whose work counts, and noise of the deviation that they say.
        Without a linear code, an algorithm runs in the clear and with noise in local steps. Everything else is refused with the
        reason, before any client is sent anything.
        """
        protected = PROTECTIONS[protection]
        reason = refusal(algorithm, protected)
        if reason is not None:
            check_refused(algorithm, protected, reason)
            return
        config = config_of(algorithm, protected)
        run = whole(config, self._turn(algorithm, protection))
        _check_rounds(run, private=protected.privacy is not None)
        check_views(self, algorithm, run)
        resumed = interrupted(config, tmp_path / "run")
        if protected.secure is not None and protected.privacy is None:  # rounding is drawn in secret, and never twice the same
            assert torch.allclose(resumed.weights, run.result.weights, atol=1e-5)
            return
        assert torch.equal(resumed.weights, run.result.weights)
        assert _compared(resumed) == _compared(run.result)

    def _turn(self, algorithm: Algorithm, protection: str) -> int:
        """Another number for each protection of an algorithm, and for each algorithm under a protection."""
        beside = list(self.cases().values()) if hasattr(self, self.attribute) else [algorithm]
        return list(PROTECTIONS).index(protection) + beside.index(algorithm)

    def test_clients_may_train_and_encode_on_another_device(self, algorithm: Algorithm) -> None:
        """Clients that train and encode on another device than the CPU mix no devices. After two rounds, all weights are as on
        the CPU, up to rounding.

        The device is pretended (`sketchfed.testing.devices`).
        """
        device = other_device()
        tried = [protection for protection in ON_DEVICES if refusal(algorithm, PROTECTIONS[protection]) is None]
        for protected in (None, *map(PROTECTIONS.__getitem__, tried)):
            here, there = (weights_of(advanced(started(algorithm, protected, device=each), 2)) for each in (CPU, device))
            assert torch.allclose(here, there, atol=1e-4), f"they differ by {float((here - there).abs().max()):.2g}"

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
                assert held.digest == expected.digest, f"client {client} in round {held.round}"
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


def _check_rounds(run: FaultyRun, *, private: bool) -> None:
    """All rounds ended with the work of those that did not fail."""
    lines = run.result.metrics
    assert [line["participants"] for line in lines] == [len(run.counted(index)) for index in range(ROUNDS)]
    assert run.failed.keys() >= {ABSENT, SPOILT}, "nobody failed, so this check says nothing"
    assert torch.isfinite(run.result.weights).all()
    for line in lines:
        assert (line["epsilon"] is None) == (not private)
        assert line["epsilon"] is None or 0 < line["epsilon"] < math.inf


def _compared(run: Run) -> list[dict[str, Any]]:
    """The lines of a run without times. In the last round, a spoiled reply has bytes and an absent client has none."""
    lines = [{**line, "seconds": 0} for line in run.metrics]
    return [*lines[:-1], {**lines[-1], "uplink_bytes": 0}]


def _engine(server: Server) -> Apart:
    assert isinstance(server.engine, Tap)
    assert isinstance(server.engine.inner, Apart)
    return server.engine.inner


def _held(server: Server) -> Replica:
    """What a client holds that is at the server's round."""
    return seen(server.algorithm.given(server.seed, server.round), server.state.replica)


def _norm(server: Server) -> float | None:
    """The norm by which an honest reply of the last round is screened."""
    assert isinstance(server.engine, Tap)
    packet = unpack(server.engine.replies[-1][1])
    first = started(server.algorithm)
    return first._read(pack(packet), first._context(1))[1] if server.round == 1 else None


def _tampered(server: Server, tamper: Callable[[dict[int, bytes]], dict[int, bytes]]) -> None:
    """One round with changed replies."""
    assert isinstance(server.engine, Tap)
    server.engine.tamper = tamper
    server.advance()
    server.engine.tamper = dict
