"""DOME against Algorithm 1 of Nicolas et al. 2025, corrected, written out with dense matrices."""

from hashlib import sha256

import numpy as np
import pytest
import torch

from federation import SEED, advanced, captured, data_of, federation, weights_of
from federation import snapshot as snapshot_of
from problems import by_torch, dense_model
from sketchfed.algorithms import Dome, RoundContext
from sketchfed.algorithms.adam import Adam
from sketchfed.algorithms.settings import SubspaceSettings
from sketchfed.errors import InputError, WireError
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.subspaces import UPDATES, Subspace
from sketchfed.training import LOSSES, LocalWork
from sketchfed.vectors import flatten
from sketchfed.wire import Packet, pack, unpack

SIZE = 6
DIGESTS = {
    "history_pca": ("6cf12a0dbf97", "ab94efa818ed"),
    "incremental_svd": ("9cabcf0e5522", "610dc800b344"),
    "frozen": ("d6ebed1e53fb", "fb713e799281"),
    "fresh": ("9897f47a2dc1", "f57929caeefe"),
    "whole": ("384a6459c76c", "bb432ab77494"),
}


def dome(
    name: str = "incremental_svd",
    *,
    size: int = SIZE,
    image: list[int] | None = None,
    frequencies: int | None = None,
    options: dict[str, object] | None = None,
    **settings: object,
) -> Dome:
    given = {"local_steps": 1, "local_rate": 1.0, "global_rate": 0.05, "beta2": 0.999, "floor": 0.0} | settings
    subspace = SubspaceSettings(name=name, size=size, image=image, frequencies=frequencies, options=options or {})
    return Dome(subspace=subspace, **given)


def columns(subspace: Subspace) -> torch.Tensor:
    """S as a matrix."""
    return subspace.adjoint(torch.eye(subspace.size, dtype=torch.float64)).T


def mean_change(module, w: torch.Tensor, clients) -> torch.Tensor:
    work = LocalWork(rate=1.0, steps=1)
    loss = LOSSES["squares"]
    return torch.stack([by_torch(module, loss, w.float(), data, work) - w.float() for data in clients]).mean(0).double()


@pytest.mark.parametrize("remove_mean", [True, False])
@pytest.mark.parametrize("name", UPDATES)
def test_rounds_are_those_of_algorithm_1_for_every_rule(name, remove_mean):
    """Lines 9 to 20 in float64, with S_t written out; S_t itself is compared with textbook forms where its rules are tested."""
    algorithm, module, clients = dome(name, remove_mean=remove_mean), dense_model("mlp", hidden=[5]), data_of(3)
    server = federation(algorithm, clients, module=dense_model("mlp", hidden=[5]))
    w = flatten(module).double()
    mean, square, corrected = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, 9):
        s = columns(server.algorithm.subspace_of(server.state.replica, SEED))
        server.advance()
        shift = corrected if remove_mean else torch.zeros_like(w)
        g = s @ (s.T @ (mean_change(module, w, clients) - shift)) + shift  # lines 9, 10, 16, 17
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * g**2
        corrected = mean / (1 - 0.9**t)
        w = w + 0.05 * corrected / (square / (1 - 0.999**t)).clamp(min=1e-16).sqrt()
        assert torch.allclose(weights_of(server).double(), w, atol=2e-3), t


def test_the_whole_space_is_adam_as_torch_has_it():
    module, clients = dense_model("mlp", hidden=[5]), data_of(3)
    algorithm = Dome(
        subspace=SubspaceSettings(name="whole"), local_steps=1, local_rate=1.0, global_rate=0.02, beta2=0.999, floor=0.0
    )
    server = advanced(federation(algorithm, clients, module=module), 10)
    other = dense_model("mlp", hidden=[5])
    optimizer = torch.optim.Adam(other.parameters(), lr=0.02, eps=1e-12)
    for _ in range(10):
        optimizer.zero_grad()
        sum(LOSSES["squares"](other(data.x), data.y) for data in clients).div(3).backward()
        optimizer.step()
    assert torch.allclose(weights_of(server), flatten(other), atol=1e-5)


@pytest.mark.parametrize("name", UPDATES)
def test_clients_rebuild_the_subspace_from_what_is_broadcast(name):
    """Those that share nothing but the seed and the updates, and miss rounds, end where the server is, bit for bit."""
    settings = {"participation": 0.4, "remove_mean": True}
    server = advanced(federation(dome(name, **settings), data_of(5), module=dense_model("mlp"), apart=True), 12)
    together = advanced(federation(dome(name, **settings), data_of(5), module=dense_model("mlp")), 12)
    assert torch.equal(weights_of(server), weights_of(together))
    participant, replicas = server.engine.inner.participant, server.engine.inner.replicas
    last = b"".join(server.tally.updates)
    for replica in replicas.values():
        arrived = participant.receive(replica, last)
        assert torch.equal(arrived.weights, weights_of(server))
        assert torch.equal(arrived.moments["square"], server.state.replica.moments["square"])
        mine, theirs = arrived.subspace.tensors(), server.state.replica.subspace.tensors()
        assert all(torch.equal(mine[part], theirs[part]) for part in theirs)


@pytest.mark.parametrize("name", ["fresh", "incremental_svd", "whole"])
def test_in_a_frame_the_first_layer_moves_along_smooth_images_only(name):
    """Inputs are images of 2 by 3, of which 4 frequencies count; clients that share nothing agree bit for bit."""
    subspace = SubspaceSettings(name=name, size=None if name == "whole" else 8, image=[2, 3], frequencies=4)
    algorithm = Dome(subspace=subspace, participation=0.6, local_steps=1, local_rate=1.0)
    module = dense_model("mlp", hidden=[5])
    first = flatten(module)
    server = advanced(federation(algorithm, data_of(4), module=module, apart=True), 8)
    together = advanced(federation(algorithm, data_of(4), module=dense_model("mlp", hidden=[5])), 8)
    assert torch.equal(weights_of(server), weights_of(together))
    moved = weights_of(server) - first
    frame = server.algorithm._frame
    assert frame.inner == len(moved) - 5 * 2
    assert torch.allclose(frame.adjoint(frame.apply(moved)), moved, atol=1e-6)
    assert moved[30:].abs().min() > 0 or name != "whole"
    arrived = server.engine.inner.participant.receive(None, server._whole())
    assert torch.equal(arrived.weights, weights_of(server))
    assert 0 < captured(server.algorithm, server.state.replica, moved) <= 1.0 + 1e-6


def test_both_directions_carry_as_many_numbers_as_there_are_directions():
    sizes = {}
    for hidden in (16, 160):
        server = advanced(federation(dome(size=20), data_of(3), module=dense_model("mlp", hidden=[hidden])), 3)
        sizes[hidden] = len(server.engine.replies[-1][0]), len(server.engine.tasks[-1][0])
    assert sizes[16] == sizes[160]
    assert max(sizes[16]) < 4 * 20 + 100


def test_who_missed_rounds_gets_what_is_fewer_bytes_and_arrives_at_the_same_bits():
    """A snapshot has the moments and the directions that are kept, so it grows, and replaying pays for longer."""
    server = federation(dome(size=4, participation=1.0), data_of(3), module=dense_model("mlp", hidden=[5]))
    participant = server.engine.inner._participant
    start, seen, sent = server.state.replica, set(), []
    for _ in range(60):
        server.advance()
        sent.append(server.tally.updates[-1])
        task = server._task(0)
        snapshot = server._whole()
        assert len(task) == min(len(b"".join(sent)), len(snapshot))
        by_task = participant.receive(start, task)
        by_snapshot = participant.receive(None, snapshot)
        for arrived in (by_task, by_snapshot):
            assert torch.equal(arrived.weights, weights_of(server))
        following = server.algorithm.subspace_of(by_snapshot, SEED).apply(torch.ones(len(start.weights)))
        assert torch.equal(following, server.algorithm.subspace_of(by_task, SEED).apply(torch.ones(len(start.weights))))
        seen.add(task == snapshot)
    assert seen == {True, False}


def test_numbers_of_gradients_are_those_of_the_changes_they_make():
    server = advanced(federation(dome(remove_mean=True), data_of(3), module=dense_model("mlp")), 3)
    replica, rate = server.state.replica, 0.3
    context = RoundContext(round=replica.round, seed=SEED, client=0, replica=replica)
    code = server.algorithm.code(len(replica.weights), context)
    gradients = torch.randn(4, len(replica.weights), generator=torch.Generator().manual_seed(1))
    assert code.offset is not None
    assert torch.allclose(-rate * code.of_gradients(gradients, rate), code.apply(-rate * gradients), atol=1e-5)
    mean = server.algorithm._adam.mean(replica.moments, replica.round)
    assert torch.allclose(code.apply(mean), torch.zeros(SIZE), atol=1e-6)  # what everyone knows already is not sent


PRIVATE = {
    "trusted server": ({"unit": "client", "observer": "public"}, None),
    "examples": ({"unit": "example"}, None),
    "secure sums": ({"unit": "client", "name": "discrete_gaussian"}, {"survivors": 1.0}),
    "examples in secure sums": ({"unit": "example", "name": "discrete_gaussian"}, {"survivors": 1.0}),
}


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize("name", ["incremental_svd", "whole"])
def test_rounds_are_private_at_both_levels_and_under_secure_sums(kind, name):
    privacy, secure = PRIVATE[kind]
    settings = PrivacySettings(epsilon=5.0, delta=1e-4, clip=0.5, insecure_noise_seed=3, **privacy)
    subspace = SubspaceSettings(name=name, size=None if name == "whole" else 20)
    algorithm = Dome(subspace=subspace, rounds=5, batch=4, local_steps=1, local_rate=1.0)
    servers = [
        advanced(
            federation(
                algorithm,
                data_of(5),
                module=dense_model("mlp"),
                workers=workers,
                privacy=settings,
                secure=None if secure is None else SecureSettings(**secure),
            ),
            5,
        )
        for workers in (1, 3)
    ]
    assert torch.equal(weights_of(servers[0]), weights_of(servers[1]))
    assert 0 < servers[0].epsilon <= 5.0
    assert not servers[0].affordable()
    assert unpack(servers[0].tally.updates[-1]).scalars["noise"] > 0


def test_what_is_taken_off_a_change_is_taken_off_its_local_steps():
    """Three noisy steps from the same replica: with the mean removed the reply is less by its coordinates, and no more."""
    privacy = PrivacySettings(unit="example", noise_multiplier=1e-6, clip=1e3, insecure_noise_seed=3)
    replies = {}
    for remove_mean in (True, False):
        algorithm = dome(remove_mean=remove_mean, local_steps=3, batch=5, local_rate=0.1)
        server = advanced(federation(algorithm, data_of(1), module=dense_model("mlp"), privacy=privacy), 1)
        replica = advanced(federation(dome(), data_of(1), module=dense_model("mlp")), 2).state.replica
        answer, _ = server.engine.inner._participant.answer(replica, data_of(1)[0], None, 0)
        replies[remove_mean] = unpack(answer).arrays["values"]
    mean = server.algorithm._adam.mean(replica.moments, replica.round)
    assert torch.allclose(replies[False] - replies[True], replica.subspace.apply(mean), atol=1e-4)
    assert replica.subspace.apply(mean).norm() > 1e-2


def test_de_biasing_takes_the_noise_off_second_moments():
    """Gradients of nothing but noise: the squares' mean is zero within 5.5 standard errors, and far from it without (1e-6)."""
    privacy = PrivacySettings(noise_multiplier=1e4, clip=1e-6, unit="client", observer="public", insecure_noise_seed=1)
    means = {}
    for debias in (True, False):
        algorithm = dome(debias=debias, beta2=0.95, remove_mean=False, size=12)
        server = advanced(federation(algorithm, data_of(4), module=dense_model("mlp"), privacy=privacy), 80)
        noise = unpack(server.tally.updates[-1]).scalars["noise"] * 12 / len(weights_of(server))
        means[debias] = float(server.state.replica.moments["square"].mean() / noise) / (1 - 0.95**80)
    effective = 12 * (1 + 0.95) / (1 - 0.95)  # numbers of noise that a mean over rounds that fade averages
    spread = np.sqrt(2 / effective)
    assert abs(means[True]) < 5.5 * spread < 0.5
    assert abs(means[False] - 1) < 5.5 * spread


def test_as_printed_what_a_round_does_not_see_grows_without_end():
    """Line 18 takes the corrected mean for the running one: 1/(1 − 0.9^t) each round. Corrected, it stays what it was."""
    seen, unseen = Adam(beta1=0.9, beta2=0.999, debias=False), Adam(beta1=0.9, beta2=0.999, debias=False, corrected_once=False)
    ends = {}
    for adam in (seen, unseen):
        moments = {"mean": torch.zeros(1), "square": torch.zeros(1)}
        moments = adam.updated(moments, torch.ones(1), 1, 0.0)
        for t in range(2, 60):  # nothing is sensed: the mean alone is added back
            moments = adam.updated(moments, adam.mean(moments, t - 1), t, 0.0)
        ends[adam.corrected_once] = float(adam.mean(moments, 59))
    assert ends[True] == pytest.approx(1.0, abs=1e-3)
    assert ends[False] > 1e4


def test_as_printed_nothing_is_left_of_second_moments():
    """Line 19 takes off the noise of one client from every coordinate; that of the mean is 40 clients and dim/size less."""
    privacy = PrivacySettings(noise_multiplier=1.0, clip=0.05, unit="client", observer="public", insecure_noise_seed=1)
    left = {}
    for paper in (True, False):
        algorithm = Dome(
            subspace=SubspaceSettings(name="history_pca", size=8), paper=paper, remove_mean=False, local_steps=1, local_rate=1.0
        )
        server = advanced(federation(algorithm, data_of(40), module=dense_model("mlp"), privacy=privacy), 5)
        left[paper] = float((server.state.replica.moments["square"] > 0).float().mean())
    assert left[True] == 0
    assert left[False] > 0.2


def test_bad_updates_and_snapshots_are_refused():
    server = advanced(federation(dome(), data_of(3), module=dense_model("mlp")), 3)
    replica, algorithm, dim = server.state.replica, server.algorithm, len(weights_of(server))
    good = {"values": torch.zeros(SIZE)}
    for arrays, scalars in (
        ({"values": torch.zeros(SIZE + 1)}, {"noise": 0.0}),
        (good, {"noise": -1.0}),
        (good, {"noise": float("nan")}),
        (good, {}),
        ({"values": torch.full((SIZE,), 1e25)}, {"noise": 0.0}),
        ({"values": torch.full((SIZE,), float("nan"))}, {"noise": 0.0}),
    ):
        with pytest.raises((WireError, InputError)):
            algorithm.follow(replica, Packet(kind="sensed", arrays=arrays, scalars=scalars), SEED)
    snapshot = unpack(pack(snapshot_of(algorithm, replica)))
    for name, other in (
        ("subspace.rows", None),
        ("subspace.rotation", torch.zeros(2, 3, dtype=torch.float64)),
        ("subspace.counts", torch.tensor([SIZE + 1, 1, 1, 8])),
        ("subspace.counts", torch.tensor([SIZE, 1, 1, 2**40])),
        ("subspace.rows", torch.zeros(0, 2**40)),
        ("subspace.rows", 7 * snapshot.arrays["subspace.rows"]),
        ("subspace.rotation", 2 * snapshot.arrays["subspace.rotation"]),
        ("subspace.values", -snapshot.arrays["subspace.values"]),
        ("subspace.energy", torch.full((dim,), 2.0, dtype=torch.float64)),
        ("mean", torch.zeros(dim + 1)),
    ):
        arrays = {key: array for key, array in snapshot.arrays.items() if key != name} | (
            {name: other} if other is not None else {}
        )
        with pytest.raises(WireError):
            algorithm.given(SEED, replica.round).replica(
                Packet(kind="snapshot", arrays=arrays, scalars=dict(snapshot.scalars)), dim
            )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta1": 1.0}, "beta1"),
        ({"floor": -1.0}, "floor"),
        ({"global_momentum": 0.9}, "beta1"),
        ({"paper": True, "name": "fresh"}, "history_pca"),
        ({"paper": True, "name": "history_pca", "image": [2, 3]}, "printed form"),
        ({"image": [28]}, "height, width"),
        ({"frequencies": 20}, "subspace.image"),
        ({"name": "svd"}, "svd"),
        ({"name": "fresh", "options": {"share": 0.5}}, "share"),
        ({"name": "incremental_svd", "options": {"share": "half"}}, "share"),
        ({"name": "whole"}, "size"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        dome(**settings)


def test_roots_are_correctly_rounded():
    """torch's own are not: on some processors one in six is off by its last bit, on others one in a hundred."""
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(1))
    moments = {"mean": torch.ones(len(values)), "square": values.clone()}
    step = Adam(beta1=0.0, beta2=0.0, debias=False).step(moments, 1, floor=0.0, least=0.0)
    assert np.array_equal(step.numpy(), 1 / np.sqrt(values.numpy()))


@pytest.mark.parametrize("name", [*UPDATES, "whole"])
def test_rounds_are_the_same_to_the_bit_on_every_processor(name):
    """Digests of what 30 updates make of weights and moments, with and without the mean removed: every party must get these."""
    found = {}
    for remove_mean in (False, True):
        algorithm = dome(name, size=None if name == "whole" else SIZE, remove_mean=remove_mean, floor=0.3).resolved(54)
        replica = algorithm.begin(torch.from_numpy(np.sin(np.arange(54.0))).float()).replica
        for t in range(30):
            values = torch.from_numpy(np.cos(np.arange(1.0, algorithm._size(54) + 1) * (t + 1))).float()
            replica = algorithm.follow(replica, Packet(kind="sensed", arrays={"values": values}, scalars={"noise": 0.1}), SEED)
        kept = [replica.weights, *replica.moments.values()]
        found[remove_mean] = sha256(b"".join(tensor.numpy().tobytes() for tensor in kept)).hexdigest()[:12]
    assert found == dict(zip((False, True), DIGESTS[name], strict=True))


def test_a_size_that_leaves_no_room_is_refused_before_the_first_round():
    with pytest.raises(InputError, match="Use a size"):
        dome(size=60).resolved(100)


def test_the_share_that_is_captured_is_that_of_the_next_round():
    server = advanced(federation(dome(), data_of(3), module=dense_model("mlp")), 4)
    replica = server.state.replica
    inside = replica.subspace.adjoint(torch.ones(SIZE))
    assert captured(server.algorithm, replica, inside) == pytest.approx(1.0, abs=1e-5)
    everything = torch.randn(len(inside), generator=torch.Generator().manual_seed(1))
    assert 0 < captured(server.algorithm, replica, everything) < 0.9
