"""Under secure sums attackers change their integers before the masks, by what their attack says, and nothing else changes."""

import pytest
import torch

from sketchfed.algorithms import FedAvg, Iterative, SketchSettings
from sketchfed.errors import InputError
from sketchfed.protection import PrivacySettings, SecureSettings, SecureSums
from sketchfed.rounds import LocalEngine, Participant
from sketchfed.testing import advanced, data_of, dense_model, federation, weights_of
from sketchfed.training import make_trainer
from sketchfed_lab.faults.byzantine import ATTACKS, AttackedEngine, Attackers

ALGORITHMS = {
    "dense": FedAvg(local_rate=0.1),
    "sketched": Iterative(sketch=SketchSettings(size=300), local_rate=0.1),
}
BOTH = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


MODULE = dense_model("mlp", hidden=[60])
"""A perceptron of 664 parameters."""


def participant_of(server):
    return Participant(trainer=make_trainer(MODULE, "squares"), seed=server.seed, protection=server.protection)


def grouped(algorithm, attackers=None, *, clip=100.0):
    """Nine clients in three groups, some of which attack before they mask."""
    server = federation(algorithm, data_of(9), module=MODULE, secure=SecureSettings(clip=clip, group_size=3))
    if attackers is not None:
        participant = participant_of(server)
        start = server.state.replica if algorithm.shows_weights else None
        engine = LocalEngine(attackers.among(participant), data_of(9).__getitem__, clients=9, start=start, workers=1)
        server.engine.inner = AttackedEngine(engine, attackers)
    return server


def opened(server, monkeypatch):
    """The sum of each group in the first round, as the algorithm gets it, by the group's clients."""
    sums, genuine = [], SecureSums.opened

    def kept(self, total, survivors, context):
        packet = genuine(self, total, survivors, context)
        sums.append(self.code(context).values(packet))
        return packet

    with monkeypatch.context() as patched:
        patched.setattr(SecureSums, "opened", kept)
        server.advance()
    return dict(zip(server.protection.groups(server.seed, 0), sums, strict=True))


def contributions(algorithm, monkeypatch, **settings):
    """What each client adds if all are honest, (9, size), from the integers before the masks."""
    found, genuine = {}, SecureSums.integers

    def kept(self, work):
        values = genuine(self, work)
        found[work.context.client] = self.mechanism.recovered(values, work.context.shared)
        return values

    with monkeypatch.context() as patched:
        patched.setattr(SecureSums, "integers", kept)
        grouped(algorithm, **settings).advance()
    return torch.stack([found[client] for client in range(9)])


@BOTH
@pytest.mark.parametrize("name", ATTACKS)
def test_the_sum_of_an_attackers_group_changes_by_what_the_attack_says(name, algorithm, monkeypatch):
    """Client 4 attacks; sums of the other groups stay as they are."""
    adds = contributions(algorithm, monkeypatch)
    others = torch.cat([adds[:4], adds[5:]])
    dice = torch.Generator().manual_seed(3)
    adds[4] = ATTACKS[name].sent(adds[4:5], others, attackers=1, generator=dice)[0]
    for group, total in opened(grouped(algorithm, Attackers(ATTACKS[name], {4}, 3)), monkeypatch).items():
        torch.testing.assert_close(total, adds[list(group)].sum(0), rtol=1e-4, atol=1e-4)


@BOTH
def test_attackers_ignore_the_clip_norm_and_the_server_does_not(algorithm, monkeypatch):
    """All clients are clipped to 0.01, and client 4 sends -90 times that. Its group's sum points where it wants."""
    adds = contributions(algorithm, monkeypatch, clip=0.01)
    for group, total in opened(grouped(algorithm, Attackers(ATTACKS["-90 times"], {4}, 0), clip=0.01), monkeypatch).items():
        if 4 in group:
            assert float(total.norm()) == pytest.approx(0.03, rel=1e-3)
            assert float(torch.cosine_similarity(total, -adds[4], 0)) > 0.8
        else:
            torch.testing.assert_close(total, adds[list(group)].sum(0), rtol=1e-4, atol=1e-6)


@BOTH
def test_attackers_that_do_nothing_change_nothing(algorithm):
    plain = advanced(grouped(algorithm), 3)
    watched = advanced(grouped(algorithm, Attackers(ATTACKS["none"], {1, 4}, 0)), 3)
    torch.testing.assert_close(weights_of(watched), weights_of(plain), rtol=0, atol=1e-6)
    assert (watched.tally.replies, watched.tally.refused) == (27, 0)
    assert watched.tally.uplink_bytes == plain.tally.uplink_bytes


def test_the_engine_knows_why_clients_fail_honest_or_not():
    """They are asked in two calls, and the complaints of both are kept until the next stage."""
    engine = grouped(FedAvg(), Attackers(ATTACKS["ipm"], {4}, 0)).engine
    assert engine.ask(dict.fromkeys(range(9), b"no request"), "masked") == {}
    assert set(engine.complaints) == set(range(9))
    engine.ask({}, "consent")
    assert not engine.complaints


def test_noise_is_refused():
    privacy = PrivacySettings(name="discrete_gaussian", noise_multiplier=1.0, delta=1e-3, insecure_noise_seed=5)
    server = federation(FedAvg(), data_of(9), module=MODULE, privacy=privacy, secure=SecureSettings(group_size=3))
    with pytest.raises(InputError, match=r"Leave \[privacy\] out"):
        Attackers(ATTACKS["ipm"], {0}, 0).among(participant_of(server))
