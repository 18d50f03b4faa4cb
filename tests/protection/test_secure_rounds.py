"""Secure sums inside rounds of training: exact, counted in bytes, and robust against what clients and servers may do."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from federation import CONTEXT, Tap, advanced, data_of, federation, weights_of
from problems import dense_model
from sketchfed.algorithms import Dbcl, FedAvg, FetchSgd, Iterative, Replica
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.errors import SecureSumError, WireError
from sketchfed.privacy import Rounded
from sketchfed.protection import ClientWork, PrivacySettings, SecureSettings
from sketchfed.protection.batches import HiddenBatches
from sketchfed.protection.units import EachExample
from sketchfed.secure import STAGES
from sketchfed.secure import client as stages
from sketchfed.secure.dealing import SEALED
from sketchfed.seeds import SecretSeed
from sketchfed.training import make_trainer
from sketchfed.wire import Bits, Packet, split, unpack

FALSE_ALARM = 1e-6
SKETCHED = SketchSettings(ratio=0.5)
ALGORITHMS = {
    "dense": FedAvg(local_rate=0.1),
    "sketched": FedAvg(codec=CodecSettings(name="sketched"), sketch=SKETCHED, local_rate=0.1),
    "iterative": Iterative(sketch=SKETCHED, local_rate=0.1, global_momentum=0.5),
    "fetchsgd": FetchSgd(sketch=SketchSettings(name="count", ratio=0.6), rows=3, local_rate=0.1),
    "dbcl": Dbcl(sketch=SketchSettings(name="balanced", ratio=0.5), vary=0.4, output="sketched", local_rate=0.1),
}
PLAIN = SecureSettings(clip=100.0)
DISCRETE = PrivacySettings(name="discrete_gaussian", noise_multiplier=1.0, delta=1e-3, clip=0.5, insecure_noise_seed=3)


class Dropping(Tap):
    """An engine from which some clients vanish at a stage and stay away for the rest of the sum."""

    def __init__(self, inner, gone):
        super().__init__(inner)
        self.gone = gone

    def ask(self, requests, stage="train"):
        away = {client for at, clients in self.gone.items() if STAGES.index(at) <= STAGES.index(stage) for client in clients}
        return super().ask({client: request for client, request in requests.items() if client not in away}, stage)


def dropping(server, gone):
    server.engine = Dropping(server.engine.inner, gone)
    return server


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_under_secure_sums_is_a_plain_round_up_to_rounding(name):
    data = data_of(5)
    plain = advanced(federation(ALGORITHMS[name], data), 3)
    secure = advanced(federation(ALGORITHMS[name], data, secure=PLAIN), 3)
    torch.testing.assert_close(weights_of(secure), weights_of(plain), rtol=1e-4, atol=1e-5)
    assert secure.epsilon is None


def test_clients_at_other_rounds_are_caught_up_inside_a_secure_sum():
    algorithm = replace(ALGORITHMS["iterative"], participation=0.5)
    plain = advanced(federation(algorithm, data_of(8)), 6)
    secure = advanced(federation(algorithm, data_of(8), secure=PLAIN), 6)
    torch.testing.assert_close(weights_of(secure), weights_of(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_clients_may_drop_out_at_any_stage(stage):
    """Those gone before their masked reply are not in the mean; those gone later are."""
    data = data_of(6)
    server = dropping(federation(FedAvg(local_rate=0.1), data, secure=SecureSettings(clip=100.0, survivors=0.6)), {stage: {1}})
    server.advance()
    left = {1} if STAGES.index(stage) <= STAGES.index("masked") else set()
    alone = federation(FedAvg(local_rate=0.1), data, tamper=lambda got: {c: r for c, r in got.items() if c not in left})
    alone.advance()
    torch.testing.assert_close(weights_of(server), weights_of(alone), rtol=1e-4, atol=1e-5)
    assert server.tally.replies == 6 - len(left)


def test_too_few_survivors_abandon_the_round_and_cost_nothing():
    server = dropping(federation(FedAvg(), data_of(6), privacy=DISCRETE, secure=SecureSettings()), {"masked": {1, 2, 3}})
    before = weights_of(server).clone()
    with pytest.raises(SecureSumError, match="abandoned 3 times"):
        server.advance()
    assert server.engine.stages == ["keys", "shares", "masked"] * 3  # nobody is asked for a share of a secret
    assert torch.equal(weights_of(server), before)
    assert server.epsilon == 0.0


def test_an_abandoned_attempt_is_tried_again_with_other_keys():
    class OnceAway(Dropping):
        def ask(self, requests, stage="train"):
            self.gone = {"masked": {0, 1, 2}} if self.stages.count("keys") < 2 and stage != "keys" else {}
            return super().ask(requests, stage)

    server = federation(FedAvg(local_rate=0.1), data_of(6), secure=PLAIN)
    server.engine = OnceAway(server.engine.inner, {})
    server.advance()
    assert server.round == 1
    first, second = (unpack(next(iter(replies.values()))) for replies, at in keys_of(server.engine))
    assert first != second


def test_an_attempt_that_fails_while_it_is_opened_is_charged_and_the_next_one_too():
    class LateOnce(Dropping):
        def ask(self, requests, stage="train"):
            self.gone = {"unmask": {0, 1, 2, 3}} if self.stages.count("unmask") == 0 and stage == "unmask" else {}
            return super().ask(requests, stage)

    fresh = replace(DISCRETE, insecure_noise_seed=None)
    server = federation(FedAvg(local_rate=0.1), data_of(6), privacy=fresh, secure=SecureSettings())
    server.engine = LateOnce(server.engine.inner, {})
    server.advance()
    assert [entry.clients for entry in server.privacy_ledger.entries] == [tuple(range(6))] * 2
    whole = advanced(federation(FedAvg(local_rate=0.1), data_of(6), privacy=fresh, secure=SecureSettings()), 1)
    assert server.epsilon > whole.epsilon


def test_a_client_that_makes_sums_fail_is_named_and_the_next_attempt_does_without_it(monkeypatch, caplog):
    """Client 2 deals a box to client 1 that does not open, and leaves at the end of every sum: its seed is lost."""
    genuine = stages.seal

    def seal(key, to, sender, recipient, plain):
        return bytes(SEALED) if (sender, recipient) == (2, 1) else genuine(key, to, sender, recipient, plain)

    monkeypatch.setattr(stages, "seal", seal)
    server = dropping(federation(FedAvg(local_rate=0.1), data_of(4), secure=PLAIN), {"unmask": {2}})
    server.advance()
    assert server.engine.stages.count("keys") == 2
    assert server.tally.replies == 3
    assert "goes on without client 2: 2 valid shares of a secret of it are left" in caplog.text


def keys_of(engine):
    return [(replies, stage) for replies, stage in zip(engine.replies, engine.stages, strict=True) if stage == "keys"]


def test_survivors_are_charged_for_the_noise_that_is_really_there():
    settings = SecureSettings(survivors=0.6)
    whole = advanced(federation(FedAvg(), data_of(10), privacy=DISCRETE, secure=settings), 1)
    short = dropping(federation(FedAvg(), data_of(10), privacy=DISCRETE, secure=settings), {"masked": {0, 4, 7}})
    short.advance()
    assert short.privacy_ledger.entries[0].clients == (1, 2, 3, 5, 6, 8, 9)
    assert short.privacy_ledger.entries[0].charge.multiplier == pytest.approx(
        whole.privacy_ledger.entries[0].charge.multiplier * (7 / 10) ** 0.5
    )
    assert short.epsilon > whole.epsilon
    assert "PLD" in short.privacy_ledger.text


@pytest.mark.parametrize("unit", ["client", "example"])
def test_discrete_noise_in_shares_adds_up_to_the_noise_of_the_sum(unit):
    """χ² on the energy of what moves the weights, when updates are nothing; false alarm below 1e-6.

    With 15 rounds of 16 numbers, a variance that is off by a factor of 2 is found with probability 0.99.
    """
    algorithm = Iterative(sketch=SketchSettings(size=16), local_rate=1.0, batch=4, local_steps=1, global_rate=1.0)
    settings = replace(DISCRETE, unit=unit, clip=1e-3, noise_multiplier=1_000.0)
    server = federation(algorithm, data_of(8), privacy=settings, secure=SecureSettings(survivors=1.0))
    energy, rounds = 0.0, 15
    for _ in range(rounds):
        server.advance()
        mean = received_mean(server)
        scale = 1.0 if unit == "client" else 1.0 / 4
        energy += float((mean * 8 / scale).double().square().sum())
    law = stats.chi2(16 * rounds)
    spread = (
        server.protection.charge(8).multiplier * server.protection.mechanism.sensitivity / server.protection.mechanism.scale
    )
    assert law.ppf(FALSE_ALARM / 2) < energy / spread**2 < law.ppf(1 - FALSE_ALARM / 2)


def received_mean(server):
    return unpack(server.tally.updates[-1]).arrays["values"]


def test_every_byte_of_every_stage_is_counted():
    server = advanced(federation(FedAvg(), data_of(5), secure=PLAIN), 1)
    assert server.engine.stages == list(STAGES)
    assert server.tally.uplink_bytes == sum(len(reply) for replies in server.engine.replies for reply in replies.values())
    assert server.tally.downlink_bytes == sum(len(task) for tasks in server.engine.tasks for task in tasks.values())


def test_replies_are_packed_to_the_bits_of_the_mechanism():
    server = advanced(federation(FedAvg(), data_of(5), privacy=DISCRETE, secure=SecureSettings(bits=18)), 1)
    masked = [replies for replies, stage in zip(server.engine.replies, server.engine.stages, strict=True) if stage == "masked"]
    arrays = unpack(split(masked[0][0], most=2)[0]).arrays.values()
    packed = [array for array in arrays if isinstance(array, Bits)]
    assert [array.bits for array in packed] == [18]


def test_the_server_sees_no_update_among_masked_replies():
    """Masked replies of equal clients are unrelated and uniform: Kolmogorov–Smirnov, false alarm below 1e-6."""
    data = [data_of(1)[0]] * 5
    algorithm = FedAvg(local_rate=0.0001)
    server = advanced(federation(algorithm, data, secure=SecureSettings(clip=1.0)), 20)
    seen = []
    for replies, stage in zip(server.engine.replies, server.engine.stages, strict=True):
        if stage == "masked":
            (packed,) = (array for array in unpack(split(replies[0], most=2)[0]).arrays.values() if isinstance(array, Bits))
            seen.append(packed.values)
    values = torch.cat(seen).double() / 2.0**32
    assert stats.kstest(values.numpy(), "uniform").pvalue > FALSE_ALARM


def test_a_garbled_reply_drops_its_client_only():
    def garble(replies):
        return {client: reply[:-3] if client == 2 else reply for client, reply in replies.items()}

    server = advanced(federation(FedAvg(), data_of(6), secure=PLAIN, tamper=garble), 1)
    assert server.round == 1
    assert server.tally.replies == 5
    assert server.tally.refused == 1


def test_a_task_that_cannot_be_read_drops_its_client_only():
    server = federation(FedAvg(), data_of(6), secure=PLAIN)

    class Damaging(Tap):
        def ask(self, requests, stage="train"):
            if stage == "masked":
                sealed = bytes(split(requests[3], most=10)[0])
                requests = {**requests, 3: sealed}
            return super().ask(requests, stage)

    server.engine = Damaging(server.engine.inner)
    server.advance()
    assert server.tally.replies == 5


@pytest.mark.parametrize("damage", [lambda request: b"", lambda request: request[:30], lambda request: request + b"x"])
def test_a_request_that_cannot_be_read_drops_its_client_only(damage):
    server = federation(FedAvg(), data_of(6), secure=PLAIN)

    class Damaging(Tap):
        def ask(self, requests, stage="train"):
            return super().ask({**requests, 3: damage(requests[3])} if stage == "masked" else requests, stage)

    server.engine = Damaging(server.engine.inner)
    server.advance()
    assert server.tally.replies == 5


def test_clients_refuse_terms_that_are_not_those_of_the_run():
    """A server that asks for fewer survivors would get a sum with too little noise."""
    server = federation(FedAvg(), data_of(6), privacy=DISCRETE, secure=SecureSettings(survivors=0.9))
    server.protection = replace(server.protection, settings=replace(server.protection.settings, survivors=0.6))
    with pytest.raises(SecureSumError):
        server.advance()
    assert "its terms differ" in next(iter(server.engine.complaints.values()))


def test_only_a_stage_that_was_begun_is_answered():
    server = advanced(federation(FedAvg(), data_of(5), secure=PLAIN), 1)
    assert server.engine.ask({0: server.engine.tasks[-1][0]}, "unmask") == {}
    assert "answers each stage once" in server.engine.complaints[0]


def test_noise_in_local_steps_goes_under_secure_sums_too():
    algorithm = FedAvg(local_rate=0.1, batch=4, local_steps=2)
    settings = PrivacySettings(unit="example", placement="steps", noise_multiplier=1.0, delta=1e-3, insecure_noise_seed=1)
    open_ = advanced(federation(algorithm, data_of(5), privacy=settings), 2)
    secure = advanced(federation(algorithm, data_of(5), privacy=settings, secure=SecureSettings(clip=100.0)), 2)
    torch.testing.assert_close(weights_of(secure), weights_of(open_), rtol=1e-4, atol=1e-5)
    assert secure.epsilon == open_.epsilon


class _Renamed(FedAvg):
    """Sends its integers under a name that nobody looks for."""

    name = "renamed"

    def client(self, change, memory, context):
        packet, memory = super().client(change, memory, context)
        return Packet(kind=packet.kind, arrays={"numbers": packet.arrays["values"]}), memory


def test_integers_under_another_name_are_refused():
    algorithm = _Renamed(local_steps=1, batch=2, local_rate=0.1)
    trainer = make_trainer(dense_model("linear"), "squares")
    replica = Replica(round=0, weights=torch.zeros(trainer.dim))
    work = ClientWork(trainer=trainer, replica=replica, examples=data_of(1)[0], memory=None, context=CONTEXT)
    mechanism = Rounded(size=trainer.dim, clip=1.0, clients=3, units=100)
    with pytest.raises(WireError, match="should carry"):
        EachExample(algorithm, HiddenBatches(algorithm.work), 1).integers(work, mechanism, SecretSeed())
