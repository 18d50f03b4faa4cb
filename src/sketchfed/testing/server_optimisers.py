"""What every server optimiser must do with changes and moments."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sketchfed.algorithms import FedAvg, Iterative, ServerSettings, SketchSettings
from sketchfed.server_optimisers import SERVER_OPTIMISERS, ServerOptimiser
from sketchfed.tables import flat
from sketchfed.testing.algorithm_cases import started
from sketchfed.testing.federation import advanced, weights_of
from sketchfed.testing.suite import Suite

DIM, ROUNDS = 5_000, 4


def _change(index: int) -> Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(index)) * torch.logspace(0, -4, DIM)


def _played(optimiser: ServerOptimiser) -> list[Tensor]:
    """The steps of a few rounds, and the moments after the last one."""
    moments: Mapping[str, Tensor] = optimiser.begin(DIM)
    steps = []
    for index in range(ROUNDS):
        step, moments = optimiser.step(_change(index), moments)
        steps.append(step)
    return [*steps, *moments.values()]


def _settings(optimiser: ServerOptimiser) -> ServerSettings:
    return ServerSettings(name=SERVER_OPTIMISERS.name_of(type(optimiser)), options=flat(optimiser))


class ServerOptimiserConformance(Suite):
    """All demands on a server optimiser. `optimisers` are instances of yours."""

    argument, attribute, kind, example = "optimiser", "optimisers", ServerOptimiser, "[Mine(beta=0.9)]"
    optimisers: ClassVar[object]

    def test_moments_are_vectors(self, optimiser: ServerOptimiser) -> None:
        """`begin` makes finite float32 vectors `(dim,)`, new ones each time, for any `dim`, also 0."""
        for dim in (0, 1, DIM):
            for tensor in optimiser.begin(dim).values():
                assert (tensor.shape, tensor.dtype) == ((dim,), torch.float32)
                assert torch.isfinite(tensor).all()
        one, other = optimiser.begin(3), optimiser.begin(3)
        assert all(one[name].data_ptr() != other[name].data_ptr() for name in one)

    def test_arguments_are_not_modified(self, optimiser: ServerOptimiser) -> None:
        """`step` returns a finite step and moments of the same names, and modifies neither the change nor the moments."""
        moments: Mapping[str, Tensor] = optimiser.begin(DIM)
        for index in range(ROUNDS):
            change, kept = _change(index), {name: tensor.clone() for name, tensor in moments.items()}
            step, after = optimiser.step(change, moments)
            assert torch.isfinite(step).all()
            assert torch.equal(change, _change(index))
            assert all(torch.equal(moments[name], kept[name]) for name in kept)
            assert after.keys() == moments.keys()
            moments = after

    def test_steps_are_the_same_bits_for_any_number_of_threads(self, optimiser: ServerOptimiser) -> None:
        """Steps and moments have the same bits each time, for any number of threads."""
        before, found = torch.get_num_threads(), []
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                found.append(_played(optimiser))
        finally:
            torch.set_num_threads(before)
        for again in found[1:]:
            assert all(torch.equal(one, other) for one, other in zip(found[0], again, strict=True))

    def test_without_changes_nothing_moves(self, optimiser: ServerOptimiser) -> None:
        """As long as all changes are zero, the step is zero."""
        moments: Mapping[str, Tensor] = optimiser.begin(DIM)
        for _ in range(ROUNDS):
            step, moments = optimiser.step(torch.zeros(DIM), moments)
            assert not step.any()

    def test_it_goes_downhill(self, optimiser: ServerOptimiser) -> None:
        """On ½‖w‖² with changes of −0.1·w and the default rate, 100 rounds bring w nearer to zero."""
        rate = optimiser.default_rate or 1.0
        weights = begun = torch.linspace(-1.0, 1.0, DIM)
        moments: Mapping[str, Tensor] = optimiser.begin(DIM)
        for _ in range(100):
            step, moments = optimiser.step(-0.1 * weights, moments)
            weights = weights + rate * step
        assert weights.norm() < 0.9 * begun.norm()

    @pytest.mark.parametrize("algorithm", ["fedavg", "iterative"])
    def test_clients_that_come_back_take_the_same_steps(self, optimiser: ServerOptimiser, algorithm: str) -> None:
        """With half of the clients in a round, clients that follow updates, or get models, hold what the server holds."""
        common: dict[str, Any] = {"participation": 0.5, "server_optimiser": _settings(optimiser)}
        sketched = Iterative(sketch=SketchSettings(ratio=0.5), **common)
        made = FedAvg(**common) if algorithm == "fedavg" else sketched
        joint, apart = (advanced(started(made, apart=apart, shared_start=not apart), 6) for apart in (False, True))
        assert torch.isfinite(weights_of(joint)).all()
        assert torch.equal(weights_of(joint), weights_of(apart))
