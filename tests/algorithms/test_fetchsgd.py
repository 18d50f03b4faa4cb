"""FetchSGD against Algorithm 1 of Rothchild et al. 2020, written out with dense tables."""

from dataclasses import replace

import pytest
import torch

from federation import CONTEXT, SEED, advanced, data_of, federation, weights_of
from problems import by_torch, dense_model
from sketchfed.algorithms import Change, FetchSgd, Replica, RoundContext
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.errors import InputError, WireError
from sketchfed.sketches import dense, make_sketch
from sketchfed.training import LOSSES, LocalWork
from sketchfed.wire import Bits, Packet, bits_named, tensor_named, unpack

DIM, ROWS, COLUMNS, FETCHED = 28, 3, 9, 4


def fetching(**settings: object) -> FetchSgd:
    table = SketchSettings(name="count", size=ROWS * COLUMNS)
    return FetchSgd(sketch=table, rows=ROWS, fetched=FETCHED, local_steps=2, **settings)


def tables() -> torch.Tensor:
    """The rows of S, `(rows, columns, dim)`: the same in all rounds."""
    return torch.stack(
        [dense(make_sketch("count", dim=DIM, size=COLUMNS, seed=SEED.child("table", row))) for row in range(ROWS)]
    )


def mean_change(w: torch.Tensor, work: LocalWork) -> torch.Tensor:
    changes = [by_torch(dense_model("linear"), LOSSES["squares"], w.float(), data, work) - w.float() for data in data_of(3)]
    return torch.stack(changes).double().mean(0)


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rounds_are_those_of_algorithm_1(momentum, masking):
    """Rothchild et al. 2020, Alg. 1, for changes instead of gradients: what is added here is subtracted there.

    Coordinates that meet in a cell have equal estimates, so which of them are the k largest is read from the update, and it is
    only checked that they are.
    """
    algorithm = fetching(masking=masking, global_momentum=momentum, global_rate=0.2)
    server, s = federation(algorithm, data_of(3)), tables()
    w, u, e = weights_of(server).double(), *torch.zeros(2, ROWS, COLUMNS, dtype=torch.float64)
    for _ in range(6):
        server.advance()
        u = momentum * u + s @ mean_change(w, algorithm.work)  # lines 5 to 11
        e = e + 0.2 * u  # line 12
        estimates = torch.einsum("rcd,rc->rd", s, e).median(0).values  # U
        largest = unpack(server.tally.updates[-1]).arrays["indices"].values
        others = [i for i in range(DIM) if i not in largest]
        assert estimates[largest].abs().min() > estimates[others].abs().max() - 1e-6  # Top-k
        delta = torch.zeros(DIM, dtype=torch.float64).index_copy(0, largest, estimates[largest])  # line 13
        if masking:
            touched = (s[:, :, largest] != 0).any(2)
            u, e = u.masked_fill(touched, 0), e.masked_fill(touched, 0)
        else:
            e = e - s @ delta  # line 14
        w = w + delta  # line 15
        for got, wanted in ((weights_of(server), w), (server.state.own["momentum"], u), (server.state.own["error"], e)):
            assert torch.allclose(got.double(), wanted, rtol=0, atol=1e-5)


def test_a_round_changes_as_many_coordinates_as_are_fetched():
    server = federation(fetching(), data_of(3))
    for _ in range(3):
        before = weights_of(server)
        server.advance()
        assert int((weights_of(server) != before).sum()) == FETCHED


def test_heavy_coordinates_are_found():
    """A change with few large coordinates among small ones comes through exactly where they are."""
    algorithm = FetchSgd(sketch=SketchSettings(name="count", size=1_500), rows=5, fetched=10, global_rate=1.0).resolved(3_000)
    change = 1e-4 * torch.randn(3_000, generator=torch.Generator().manual_seed(1))
    heavy = torch.arange(7, 3_000, 300)
    change[heavy] = torch.linspace(1, 2, 10)
    packet, memory = algorithm.client(Change(change), None, RoundContext(round=0, seed=SEED, client=0))
    state, update = algorithm.server(algorithm.begin(torch.zeros(3_000)), [packet], SEED)
    assert memory is None
    assert torch.equal(bits_named(update, "indices", shape=(10,), bits=12), heavy)
    assert torch.allclose(state.replica.weights[heavy], change[heavy], atol=0.01)


def test_the_table_goes_up_and_few_coordinates_go_down():
    algorithm = FetchSgd(sketch=SketchSettings(name="count", size=500), rows=5, fetched=40)
    server = advanced(federation(algorithm, data_of(3), module=dense_model("mlp")), 3)
    width = (len(weights_of(server)) - 1).bit_length()
    for task in server.engine.tasks[-1].values():
        assert 0 < len(task) - 40 * (32 + width) // 8 < 100
    for reply in server.engine.replies[-1].values():
        assert 0 < len(reply) - 4 * 500 < 100


def test_all_clients_use_one_table_in_all_rounds():
    algorithm, change = fetching().resolved(DIM), torch.arange(DIM).float()
    sent = {
        tuple(tensor_named(packet, "values", shape=(ROWS, COLUMNS)).reshape(-1).tolist())
        for packet in (
            algorithm.client(Change(change), None, RoundContext(round=r, seed=SEED, client=c))[0]
            for r in (0, 5)
            for c in (0, 1)
        )
    }
    assert len(sent) == 1


def honest() -> tuple[FetchSgd, Replica, Packet]:
    server = advanced(federation(fetching(), data_of(3)), 1)
    return server.algorithm, Replica(round=0, weights=torch.zeros(DIM)), unpack(server.tally.updates[0])


def fetched(indices: list[int], *, bits: int = 5, values: object = None) -> Packet:
    given = torch.ones(len(indices)) if values is None else values
    return Packet(kind="fetched", arrays={"indices": Bits(torch.tensor(indices), bits=bits), "values": given})


HOSTILE = {
    "beyond the last": (fetched([1, 2, 3, 28]), "must ascend and stay below 28"),
    "far beyond": (fetched([1, 2, 3, 31]), "must ascend and stay below 28"),
    "twice": (fetched([1, 2, 2, 3]), "must ascend"),
    "out of order": (fetched([1, 3, 2, 4]), "must ascend"),
    "too many": (fetched([1, 2, 3, 4, 5]), "it is 5-bit"),
    "too few": (fetched([1]), "it is 5-bit"),
    "too wide": (fetched([1, 2, 3, 4], bits=6), "it is 6-bit"),
    "values of another shape": (fetched([1, 2, 3, 4], values=torch.ones(4, 1)), r"it is float32\[4, 1\]"),
    "values of another type": (fetched([1, 2, 3, 4], values=torch.ones(4).double()), "it is float64"),
    "no values": (Packet(kind="fetched", arrays={"indices": Bits(torch.arange(4), bits=5)}), "it is missing"),
    "no indices": (Packet(kind="fetched", arrays={"values": torch.ones(4)}), "it is missing"),
    "another kind": (replace(fetched([1, 2, 3, 4]), kind="mean"), "'fetched' was expected, 'mean' arrived"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_updates_are_refused(case):
    algorithm, replica, update = honest()
    assert algorithm.follow(replica, update, SEED).round == 1
    assert algorithm.follow(replica, fetched([0, 1, 2, 27]), SEED).weights[27] == 1
    packet, complaint = HOSTILE[case]
    with pytest.raises(WireError, match=complaint):
        algorithm.follow(replica, packet, SEED)


@pytest.mark.parametrize("shape", [(COLUMNS, ROWS), (ROWS, COLUMNS + 1), (ROWS * COLUMNS,), (1, ROWS, COLUMNS)])
def test_tables_of_another_shape_are_refused(shape):
    algorithm = fetching().resolved(DIM)
    algorithm.check(Packet(kind="table", arrays={"values": torch.ones(ROWS, COLUMNS)}), DIM, CONTEXT)
    with pytest.raises(WireError, match=r"should carry an array 'values' of float32\[3, 9\]"):
        algorithm.check(Packet(kind="table", arrays={"values": torch.ones(shape)}), DIM, CONTEXT)


def test_settings_that_cannot_work_are_refused_before_the_first_round():
    cases = [
        ({"sketch": SketchSettings(name="srht")}, "works only with a count sketch, got sketch.name = 'srht'"),
        ({"sketch": SketchSettings(name="count", bits=8)}, "sends float32 only, got sketch.bits = 8"),
        ({"rows": 0}, "algorithm.rows must be odd, because the server takes medians over rows; got 0"),
        ({"rows": 4}, "algorithm.rows must be odd"),
        ({"fetched": 0}, "algorithm.fetched must be at least 1, got 0"),
        ({"sketch": SketchSettings(name="count", size=500, bits_down=4)}, "sends float32 only"),
        ({"sketch": SketchSettings(name="count", size=4)}, "a table of 4 cells is too small for 5 rows"),
        ({"fetched": 101}, "algorithm.fetched = 101 exceeds the model's 100 parameters"),
    ]
    for settings, complaint in cases:
        with pytest.raises(InputError, match=complaint):
            FetchSgd(**settings).resolved(100)


def test_an_update_before_the_settings_are_resolved_is_refused():
    update = Packet(kind="fetched", arrays={})
    with pytest.raises(InputError, match=r"fetched follows from the model's dimension. Call resolved\(dim\) first"):
        replace(fetching(), fetched=None).follow(Replica(round=0, weights=torch.zeros(DIM)), update, SEED)
