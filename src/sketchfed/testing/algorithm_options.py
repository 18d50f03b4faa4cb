"""What every algorithm must do with options that many algorithms have: server momentum and optimisers, sketches of few bits."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from sketchfed.algorithms import Algorithm, ServerSettings, SketchSettings
from sketchfed.errors import InputError
from sketchfed.rounds import AsynchronousSettings
from sketchfed.rounds.server import Server
from sketchfed.testing.algorithm_cases import CLIENTS, AlgorithmSuite, dim, module, started, working
from sketchfed.testing.federation import Tap, advanced, weights_of
from sketchfed.testing.suite import only
from sketchfed.wire import Bits, unpack

MOMENTUM = 0.9
BITS = 4
BESIDE: dict[str, dict[str, Any]] = {
    "weights": {"weighting": "examples"},
    "scaffold": {"scaffold": True},
    "feddyn": {"feddyn": 0.1},
}


class AlgorithmOptions(AlgorithmSuite):
    """Momentum, server optimisers, what travels beside parameters, asynchronous steps and few bits."""

    def test_server_momentum_counts_or_is_refused(self, algorithm: Algorithm) -> None:
        """`global_momentum` changes what the second round does, also for clients that missed the first, or it is refused.

        The server keeps the velocity from round to round (`Replica.velocity` or its own state), and so do clients that follow
        updates.
        """
        rate = working(algorithm).resolved(dim(), CLIENTS, module()).global_rate
        try:
            moving = replace(_roomy(algorithm), global_momentum=MOMENTUM, global_rate=rate, participation=0.5)
            joint, apart = started(moving), started(moving, apart=True, shared_start=False)
            still = started(replace(moving, global_momentum=0.0))
        except InputError:
            return
        for server in (joint, apart, still):
            advanced(server, 3)
        assert not torch.equal(weights_of(joint), weights_of(still)), f"global_momentum = {MOMENTUM} has no effect in 3 rounds"
        assert torch.equal(weights_of(joint), weights_of(apart)), "clients that missed rounds have lost the velocity"

    def test_server_optimisers_work_or_are_refused(self, algorithm: Algorithm) -> None:
        """If `own_step` is empty, a server optimiser changes the steps, also after missed rounds. Otherwise it is refused.

        `begin` and `given` must keep the moments of the optimiser, and `stepped` must take all global steps.
        """
        adam: dict[str, Any] = {"server_optimiser": ServerSettings(name="adam"), "global_momentum": 0.0}
        if algorithm.own_step:
            with pytest.raises(InputError, match=f"algorithm.server = 'adam' .*{re.escape(algorithm.own_step)}"):
                replace(algorithm, **adam)
            return
        rate = working(algorithm).resolved(dim(), CLIENTS, module()).global_rate
        adaptive = replace(_roomy(algorithm), **adam, global_rate=rate, participation=0.5)
        joint, apart = started(adaptive), started(adaptive, apart=True, shared_start=False)
        plain = started(replace(adaptive, server_optimiser=ServerSettings()))
        for server in (joint, apart, plain):
            advanced(server, 3)
        assert joint.state.replica.moments.keys() == {"mean", "square"}
        assert not torch.equal(weights_of(joint), weights_of(plain)), "algorithm.server = 'adam' has no effect in 3 rounds"
        assert torch.equal(weights_of(joint), weights_of(apart)), "clients that missed rounds have lost the moments"

    @pytest.mark.parametrize("setting", BESIDE)
    def test_what_travels_beside_parameters_works_or_is_refused(self, algorithm: Algorithm, setting: str) -> None:
        """If `alone` is empty, weights, SCAFFOLD and FedDyn change the steps, also after missed rounds, or else are refused.

        SCAFFOLD and FedDyn may be refused for other settings, because a client must know what the server decodes of its vector.
        """
        if algorithm.alone:
            with pytest.raises(InputError, match=re.escape(algorithm.alone)):
                replace(algorithm, **BESIDE[setting])
            return
        try:
            beside = replace(_roomy(algorithm), **BESIDE[setting], participation=0.5)
            joint, apart = started(beside), started(beside, apart=True, shared_start=False)
        except InputError:
            assert setting != "weights" or algorithm.noise_defaults is not None, "weights are refused"
            return
        plain = started(replace(_roomy(algorithm), participation=0.5))
        for server in (joint, apart, plain):
            advanced(server, 3)
        weights, others = weights_of(joint)[: dim()], weights_of(plain)
        assert torch.isfinite(weights).all()
        assert not torch.equal(weights, others), f"{setting} has no effect in 3 rounds"
        assert torch.equal(weights_of(joint), weights_of(apart)), "clients that missed rounds hold other weights"

    def test_asynchronous_steps_work_or_are_refused(self, algorithm: Algorithm) -> None:
        """If `same_start` is empty, updates that started from old models make steps, and else [asynchronous] is refused.

        Without delays, and with as many clients at a time as the buffer holds, these are ordinary rounds.
        """
        if algorithm.same_start:
            with pytest.raises(InputError, match=re.escape(algorithm.same_start)):
                AsynchronousSettings().check(algorithm, protected="", engine="local", recorded=False)
            return
        late = started(algorithm, asynchronous=AsynchronousSettings(buffer=2, concurrency=3, delay="exponential"))
        begun = weights_of(late).clone()
        staleness = [advanced(late, 1).measured["staleness"] or 0.0 for _ in range(4)]
        assert max(staleness) > 0, "no update came from an old model"
        assert late.tally.refused == 0, "the server refuses updates that came from old models"
        assert torch.isfinite(weights_of(late)).all()
        assert not torch.equal(weights_of(late), begun)
        prompt = AsynchronousSettings(buffer=2, concurrency=2, delay="constant", mean=0.0)
        found, usual = started(algorithm, asynchronous=prompt), started(replace(algorithm, participation=0.5))
        torch.testing.assert_close(weights_of(advanced(found, 3)), weights_of(advanced(usual, 3)), rtol=1e-3, atol=1e-5)

    @only(lambda suite, algorithm: isinstance(getattr(algorithm, "sketch", None), SketchSettings))
    def test_a_sketch_of_few_bits_is_sent_in_fewer_bytes_or_is_refused(self, algorithm: Algorithm) -> None:
        """If there is a field `sketch`, rounds with `sketch.bits = 4` send fewer bytes and change the weights, or are refused.

        A refusal is an `InputError` before the first round.
        """
        sketch: SketchSettings = algorithm.sketch  # type: ignore[attr-defined]
        whole, rounded = (dict[str, Any](sketch=replace(sketch, bits=bits)) for bits in (32, BITS))
        try:
            server = started(replace(algorithm, **rounded))
        except InputError:
            return
        begun = weights_of(server).clone()
        advanced(server, 2)
        sent, usual = _sent(server), _sent(advanced(started(replace(algorithm, **whole)), 2))
        assert server.tally.refused == 0, "the server refuses replies of few bits"
        assert torch.isfinite(weights_of(server)).all()
        assert not torch.equal(weights_of(server), begun), "rounds of few bits leave the weights alone"
        assert sent < usual, f"with sketch.bits = {BITS}, clients send {sent:,} bytes, and with 32 bits {usual:,}"


def _roomy(algorithm: Algorithm) -> Algorithm:
    """The algorithm with a sketch that is not so tiny that one round overwrites what another one left there."""
    sketch = getattr(algorithm, "sketch", None)
    if not isinstance(sketch, SketchSettings) or sketch.completed() == sketch:
        return algorithm
    changes: dict[str, Any] = {"sketch": replace(sketch, ratio=0.5)}
    return replace(algorithm, **changes)


def _sent(server: Server) -> int:
    """The bytes of all arrays in all replies."""
    assert isinstance(server.engine, Tap)
    packets = [unpack(reply) for replies in server.engine.replies for reply in replies.values()]
    arrays = [array for packet in packets for array in packet.arrays.values()]
    return sum(len(array.packed) if isinstance(array, Bits) else array.nbytes for array in arrays)
