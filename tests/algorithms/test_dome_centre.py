"""The round that asks for the mean image, and what it changes in the rounds after it."""

import pytest
import torch
from torch import nn

from federation import SEED, advanced, captured, data_of, federation, weights_of
from federation import snapshot as snapshot_of
from problems import dense_model
from sketchfed.algorithms import Dome
from sketchfed.algorithms.settings import SubspaceSettings
from sketchfed.errors import InputError, WireError
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.protection.probe import norms
from sketchfed.subspaces import Frame, MeanImage, damped
from sketchfed.subspaces.centre import DAMPING
from sketchfed.training import Examples, LocalWork, Turn, make_trainer
from sketchfed.training.inputs import InputTrainer
from sketchfed.vectors import Layout, flatten
from sketchfed.wire import Packet, unpack

IMAGE, FREQUENCIES, SIZE = [2, 3], 4, 8


def centred(name: str = "fresh", *, size: int | None = SIZE, **settings: object) -> Dome:
    size = None if name == "whole" else size
    subspace = SubspaceSettings(name=name, size=size, image=IMAGE, frequencies=FREQUENCIES, centre=True)
    return Dome(subspace=subspace, local_steps=1, local_rate=1.0, **settings)


def model() -> nn.Module:
    return dense_model("mlp", hidden=[5])


def bright(clients: int) -> list[Examples]:
    """Inputs that have something in common, as images do."""
    return [Examples(data.x + torch.tensor([2.0, 1.0, 0.0, 1.0, 3.0, 0.5]), data.y) for data in data_of(clients)]


def mean_direction(clients: list[Examples]) -> torch.Tensor:
    frame = Frame.smooth(Layout.of(model()), image=IMAGE, frequencies=FREQUENCIES)
    mean = torch.stack([data.x.mean(0) for data in clients]).mean(0)
    return nn.functional.normalize(torch.tensor(frame.rows) @ mean, dim=0)


@pytest.mark.parametrize("name", ["fresh", "incremental_svd", "whole"])
def test_the_first_round_finds_the_mean_image_and_moves_nothing(name):
    server = advanced(federation(centred(name), bright(4), module=model()), 1)
    replica = server.state.replica
    assert torch.equal(replica.weights, flatten(model()))
    assert torch.allclose(replica.moments["centre"], mean_direction(bright(4)), atol=1e-5)
    assert not replica.moments["square"].any()
    assert replica.subspace is None
    server.advance()
    assert not torch.equal(weights_of(server), flatten(model()))


def test_where_fewer_numbers_travel_than_there_are_frequencies_the_lowest_are_asked_for():
    server = advanced(federation(centred(size=3), bright(4), module=model()), 1)
    lowest = nn.functional.normalize(mean_direction(bright(4))[:3], dim=0)
    assert torch.allclose(server.state.replica.moments["centre"], torch.cat([lowest, torch.zeros(1)]), atol=1e-5)


def test_steps_are_adams_in_the_damped_frame():
    """Rounds of the whole space in float64: E·(I − (1 − s)·uuᵀ) on both sides of Adam, which begins after the first round."""
    clients, module = bright(3), model()
    server = federation(centred("whole", global_rate=0.05, floor=0.0, beta2=0.999), clients, module=module)
    server.advance()
    u, frame = server.state.replica.moments["centre"].double(), server.algorithm._frame
    damping = torch.eye(frame.inner, dtype=torch.float64)
    for output in range(5):
        place = slice(frame.start + 4 * output, frame.start + 4 * (output + 1))
        damping[place, place] -= (1 - DAMPING) * torch.outer(u, u)
    basis = frame.adjoint(torch.eye(frame.inner)).double().T @ damping
    trainer, work = make_trainer(module, "squares"), LocalWork(rate=1.0, steps=1)
    w = flatten(module).double()
    mean = square = torch.zeros(frame.inner, dtype=torch.float64)
    for t in range(1, 6):
        server.advance()
        changes = [trainer.train(w.float(), data, work, Turn(SEED)) - w.float() for data in clients]
        g = basis.T @ torch.stack(changes).mean(0).double()
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        w = w + 0.05 * basis @ (mean / (1 - 0.9**t) / (square / (1 - 0.999**t)).clamp(min=1e-16).sqrt())
        assert torch.allclose(weights_of(server).double(), w, atol=2e-3), t


@pytest.mark.parametrize("name", ["fresh", "incremental_svd"])
def test_clients_that_share_nothing_agree_bit_for_bit(name):
    """Also who joins by a snapshot before and after training began."""
    server = federation(centred(name, participation=0.6), bright(4), module=model(), apart=True)
    together = federation(centred(name, participation=0.6), bright(4), module=model())
    for _ in range(8):
        arrived = server.engine.inner.participant.receive(None, server._whole())
        assert torch.equal(arrived.weights, weights_of(server))
        assert torch.equal(arrived.moments["centre"], server.state.replica.moments["centre"])
        server.advance()
        together.advance()
        assert torch.equal(weights_of(server), weights_of(together))


@pytest.mark.parametrize("secure", [None, SecureSettings(survivors=1.0)])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_the_ask_is_clipped_noised_and_charged_like_any_round(unit, secure):
    """Noise of a tenth of a clip norm on a sum of 6 clipped inputs or more: a cosine below 0.9 is a 20-sigma event."""
    name = "gaussian" if secure is None else "discrete_gaussian"
    privacy = PrivacySettings(name=name, unit=unit, noise_multiplier=0.1, clip=0.5, insecure_noise_seed=3)
    server = federation(centred(batch=40), bright(6), module=model(), privacy=privacy, secure=secure)
    server.advance()
    spent = server.epsilon
    assert spent > 0
    sent = unpack(server.tally.updates[0]).arrays["values"]
    assert sent.norm() < 0.5 * 40
    assert float(server.state.replica.moments["centre"] @ mean_direction(bright(6))) > 0.9
    server.advance()
    assert server.epsilon > spent


def test_advice_on_clip_norms_is_for_rounds_that_train():
    """The inputs of the first round are a thousand times longer than any gradient, and say nothing of those."""
    privacy = PrivacySettings(unit="example", noise_multiplier=1.0, clip=0.5, insecure_noise_seed=3)
    server = federation(centred(batch=5), bright(3), module=model(), privacy=privacy)
    participant = server.engine.inner._participant
    _, _, found = norms(participant.protection, participant.trainer, server.state.replica, bright(3), SEED)
    assert 0 < found.max() < 100


def test_a_damped_frame_shortens_the_mean_image_alone():
    frame = Frame.smooth(Layout.of(nn.Linear(48, 5)), image=(6, 8), frequencies=9)
    centre = nn.functional.normalize(torch.randn(9, generator=torch.Generator().manual_seed(1)), dim=0)
    rows = torch.tensor(damped(frame, centre).rows).double()
    values = torch.linalg.svdvals(rows)
    assert torch.allclose(values, torch.tensor([1.0] * 8 + [DAMPING], dtype=torch.float64), atol=1e-6)
    along = centre.double() @ torch.tensor(frame.rows).double()
    assert torch.allclose(rows @ along, DAMPING * centre.double(), atol=1e-6)
    assert torch.equal(torch.tensor(damped(frame, torch.zeros(9)).rows), torch.tensor(frame.rows))


@pytest.mark.parametrize("size", [3, 9, 14])
def test_the_map_of_the_ask_passes_the_dot_test(size):
    asked = MeanImage(Frame.smooth(Layout.of(nn.Linear(48, 5)), image=(6, 8), frequencies=9), size)
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(asked.frame.dim, generator=generator), torch.randn(size, generator=generator)
    assert float(asked.apply(x) @ y) == pytest.approx(float(x @ asked.adjoint(y)), abs=1e-4)


def test_no_gradient_is_said_to_be_captured_before_there_is_one():
    server = federation(centred(), bright(3), module=model())
    gradient = torch.ones(len(weights_of(server)))
    assert captured(server.algorithm, server.state.replica, gradient) is None
    server.advance()
    assert 0 < captured(server.algorithm, server.state.replica, gradient) <= 1


def test_inputs_that_do_not_fit_the_first_matrix_are_refused():
    trainer = InputTrainer(make_trainer(model(), "squares"), start=0, inputs=6)
    with pytest.raises(InputError, match="are not images"):
        trainer.gradients(flatten(model()), Examples(torch.zeros(2, 7), torch.zeros(2, 1)))


def test_who_has_no_examples_adds_nothing():
    trainer = InputTrainer(make_trainer(model(), "squares"), start=0, inputs=6)
    nothing = Examples(torch.zeros(0, 6), torch.zeros(0, 4))
    assert torch.equal(trainer.train(flatten(model()), nothing, LocalWork(rate=1.0), Turn(SEED)), flatten(model()))


def test_a_trainer_of_inputs_clips_each_of_them():
    trainer = InputTrainer(make_trainer(model(), "squares"), start=0, inputs=6)
    data = bright(1)[0]
    summed = trainer.clipped_sum(flatten(model()), data, 0.5)
    assert torch.allclose(summed[:6], -0.5 * nn.functional.normalize(data.x, dim=1).sum(0), atol=1e-5)
    assert not summed[6:].any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"image": None, "frequencies": None}, "subspace.image"), ({"rounds": 1}, "2 rounds")],
)
def test_settings_that_cannot_work_are_refused(settings, said):
    given = {"name": "fresh", "image": IMAGE, "frequencies": FREQUENCIES} | settings
    rounds = given.pop("rounds", 10)
    with pytest.raises(InputError, match=said):
        Dome(subspace=SubspaceSettings(centre=True, **given), rounds=rounds)


def test_noise_in_local_steps_is_refused():
    """Of its variance along the mean image a twenty-fifth would be left, and second moments would be freed from all of it."""
    privacy = PrivacySettings(unit="example", noise_multiplier=1.0, clip=0.5, placement="steps", insecure_noise_seed=3)
    with pytest.raises(InputError, match=r"subspace\.centre"):
        federation(centred(batch=5), bright(3), module=model(), privacy=privacy)


def test_snapshots_without_a_direction_for_a_centre_are_refused():
    server = advanced(federation(centred(), bright(3), module=model()), 2)
    snapshot = snapshot_of(server.algorithm, server.state.replica)
    for arrays in (
        {name: array for name, array in snapshot.arrays.items() if name != "centre"},
        {**snapshot.arrays, "centre": torch.zeros(FREQUENCIES + 1)},
        {**snapshot.arrays, "centre": torch.full((FREQUENCIES,), 20.0)},
    ):
        with pytest.raises(WireError):
            server.algorithm.given(SEED, 2).replica(
                Packet(kind="snapshot", arrays=arrays, scalars=dict(snapshot.scalars)), len(weights_of(server))
            )
