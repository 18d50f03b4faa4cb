"""Asynchronous steps (FedBuff), against a few lines of torch."""

import math
from dataclasses import replace

import pytest
import torch

from sketchfed.algorithms import CodecSettings, FedAvg, RoundContext, SketchSettings
from sketchfed.errors import InputError, NoReplyError, StorageError
from sketchfed.kernels.draws import subset
from sketchfed.rounds import AsynchronousSettings
from sketchfed.seeds import PublicSeed
from sketchfed.testing.federation import advanced, federation, weights_of
from sketchfed.testing.problems import SEED, data_of
from sketchfed.wire import pack, unpack

CLIENTS, STEPS, RATE, LOCAL = 6, 8, 0.1, 3
WORK = FedAvg(rounds=STEPS, local_steps=LOCAL, local_rate=RATE, global_rate=1.0)
LATE = AsynchronousSettings(buffer=2, concurrency=4, delay="exponential")
DATA = data_of(CLIENTS)


def server(settings: AsynchronousSettings = LATE, algorithm: FedAvg = WORK, **more):
    return federation(algorithm, DATA, asynchronous=settings, **more)


def gradient(weights: torch.Tensor, client: int) -> torch.Tensor:
    """Of half the mean square distance of a linear model with 6 inputs and 4 outputs."""
    at = weights.clone().requires_grad_()
    x, y = DATA[client]
    outputs = x @ at[:24].reshape(4, 6).T + at[24:]
    return torch.autograd.grad((outputs - y).square().sum() / len(x) / 2, at)[0]


def fedbuff(
    settings: AsynchronousSettings, start: torch.Tensor, decoded=lambda change, client, version: change
) -> tuple[torch.Tensor, list[float]]:
    """Nguyen et al. 2022, Alg. 1, as a list of events. Delays and clients come from the seed, as in a run."""
    weights, time, works, started, times = start.clone(), 0.0, [], 0, []
    for step in range(STEPS):
        buffer, batch = {}, 0
        while len(buffer) < settings.buffer:
            if not works or min(works)[0] > time:
                away = {client for _, _, client, *_ in works} | buffer.keys()
                idle = [client for client in range(CLIENTS) if client not in away]
                count = min(len(idle), settings.concurrency - len(works))
                if count > 0:
                    stream = SEED.child("round", step).child("cohort", batch).stream
                    for place in subset(stream, dim=len(idle), size=count):
                        delay = settings.drawn(SEED.child("delay", started))
                        works.append((round(time + delay, 6), started, idle[place], step, weights.clone()))
                        started += 1
                    batch += 1
            first = min(works)
            works.remove(first)
            time, _, client, version, local = first
            sent = local.clone()
            for _ in range(LOCAL):
                local = local - RATE * gradient(local, client)
            scale = 1 / math.sqrt(1 + step - version) if settings.staleness == "sqrt" else 1.0
            buffer[client] = decoded(local - sent, client, version) * scale
        weights = weights + torch.stack(list(buffer.values())).sum(0) / settings.buffer
        times.append(time)
    return weights, times


@pytest.mark.parametrize("staleness", ["sqrt", "none"])
@pytest.mark.parametrize("delay", ["lognormal", "half_normal", "exponential", "constant"])
def test_it_is_the_papers_algorithm(delay, staleness):
    settings = replace(LATE, delay=delay, staleness=staleness)
    run = server(settings)
    start = weights_of(run).clone()
    times = [advanced(run, 1).measured["time"] for _ in range(STEPS)]
    wanted, when = fedbuff(settings, start)
    assert times == pytest.approx(when, abs=1e-6)
    torch.testing.assert_close(weights_of(run), wanted, rtol=1e-4, atol=1e-5)


CODECS = {
    "rand_k": {"codec": CodecSettings(name="rand_k", ratio=0.5)},
    "qsgd": {"codec": CodecSettings(name="qsgd")},
    "a sketch of few bits": {"codec": CodecSettings(name="sketched"), "sketch": SketchSettings(ratio=0.5, bits=4)},
}


@pytest.mark.parametrize("codec", CODECS)
def test_each_update_is_decoded_as_in_the_round_in_which_its_client_started(codec):
    """Sketches and random choices are those of that round. With those of another round, the result would be noise."""
    algorithm = replace(WORK, **CODECS[codec])
    run = server(LATE, algorithm)
    start = weights_of(run).clone()

    def decoded(change, client, version):
        return run.algorithm.decoded(change, RoundContext(round=version, seed=SEED, client=client))

    advanced(run, STEPS)
    wanted, _ = fedbuff(LATE, start, decoded)
    torch.testing.assert_close(weights_of(run), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("codec", ["dense", "sketched", "qsgd"])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_without_delays_it_is_synchronous_federated_averaging(codec, mean):
    """Bit by bit with the dense codec, whose sum is the same. Other codecs decode a sum at once, so they agree to rounding.

    Delays that are equal for all clients are as good as none, if as many of them work as a step needs.
    """
    algorithm = replace(
        WORK, codec=CodecSettings(name=codec), sketch=SketchSettings(ratio=0.5) if codec == "sketched" else None
    )
    settings = AsynchronousSettings(buffer=3, concurrency=3, delay="constant", mean=mean)
    found, usual = server(settings, algorithm), federation(replace(algorithm, participation=0.5), DATA)
    for run in (found, usual):
        advanced(run, STEPS)
    if codec == "dense":
        assert torch.equal(weights_of(found), weights_of(usual))
    torch.testing.assert_close(weights_of(found), weights_of(usual), rtol=1e-4, atol=1e-5)
    for counted in ("uplink_bytes", "downlink_bytes", "broadcast_bytes", "replies"):
        assert getattr(found.tally, counted) == getattr(usual.tally, counted)
    assert found.measured == {"time": STEPS * mean, "staleness": 0.0}


def test_rounds_that_wait_take_as_long_as_their_slowest_client():
    settings = AsynchronousSettings(buffer=3, concurrency=3, starts="step", delay="exponential")
    delays = [settings.drawn(SEED.child("delay", place)) for place in range(6)]
    run = advanced(server(settings), 2)
    assert run.measured["time"] == pytest.approx(max(delays[:3]) + max(delays[3:]), abs=1e-5)
    usual = advanced(federation(replace(WORK, participation=0.5), DATA), 2)
    assert torch.equal(weights_of(run), weights_of(usual))


@pytest.mark.parametrize("seed", range(6))
def test_clients_that_start_before_the_first_step_train_from_the_first_model(seed):
    """They rebuild it themselves and are not sent it, so they must do so before others are sent the next one."""
    run = advanced(server(seed=PublicSeed(seed)), STEPS)
    assert run.tally.refused == 0


def test_results_do_not_depend_on_the_number_of_threads():
    one, four = (advanced(server(workers=workers), STEPS) for workers in (1, 4))
    assert torch.equal(weights_of(one), weights_of(four))
    assert one.measured == four.measured


def test_bytes_are_those_of_the_serializer():
    """Requests count when a client starts, and replies when they arrive."""
    run = advanced(server(), STEPS)
    sent = sum(len(request) for requests in run.engine.tasks for request in requests.values())
    assert run.tally.downlink_bytes == sent
    made = sum(len(reply) for replies in run.engine.replies for reply in replies.values())
    waiting = sum(len(flight.reply) for flight in run._flights)
    assert run.tally.uplink_bytes == made - waiting
    assert waiting > 0


def test_a_step_takes_one_update_of_a_client():
    run = server(replace(LATE, buffer=CLIENTS, concurrency=CLIENTS))
    for number in range(1, 4):
        advanced(run, 1)
        assert run.tally.replies == number * CLIENTS


@pytest.mark.parametrize("feedback", [False, True])
def test_a_client_that_gives_an_update_from_an_old_model_keeps_its_memory(feedback):
    """With error feedback, what a client keeps is what its last packet left out, whenever it arrived."""
    algorithm = replace(WORK, error_feedback=feedback, codec=CodecSettings(name="top_k", ratio=0.3))
    run = advanced(server(algorithm=algorithm), STEPS)
    assert torch.isfinite(weights_of(run)).all()
    assert bool(run.engine.inner.memories) == feedback


def test_weights_by_examples_stay_as_they_are_when_an_update_is_old():
    """Then the step is Σ s·n·Δ/Σ n. If old updates scaled their weights too, staleness would have no effect on a step."""
    settings = AsynchronousSettings(buffer=1, concurrency=4, delay="exponential")
    scaled, equal = (
        advanced(server(replace(settings, staleness=staleness), replace(WORK, weighting="examples")), STEPS)
        for staleness in ("sqrt", "none")
    )
    assert not torch.allclose(weights_of(scaled), weights_of(equal), rtol=1e-3)


def failing(run, *clients: int):
    inner = run.engine.inner

    def examples(client: int):
        if client in clients:
            raise RuntimeError("this client lost its power")
        return DATA[client]

    inner._examples = examples
    return run


def test_another_client_takes_the_place_of_one_that_fails(caplog):
    run = advanced(failing(server(), 1, 4), STEPS)
    assert run.tally.replies == STEPS * LATE.buffer
    assert "this client lost its power" in caplog.text
    assert not {1, 4} & run.tally.known.keys()


def test_a_step_goes_on_with_those_that_are_left_if_all_others_failed():
    run = advanced(failing(server(replace(LATE, buffer=5, concurrency=5)), 0, 1, 2), 2)
    assert run.tally.replies == 2 * 3


def test_it_ends_with_a_reason_if_all_clients_fail():
    with pytest.raises(NoReplyError, match=r"all 6 clients of round 1 failed, .* lost its power"):
        failing(server(), *range(CLIENTS)).advance()


def test_a_reply_far_longer_than_the_others_is_left_out_and_another_client_takes_its_place():
    def absurd(replies):
        changed = {}
        for client, reply in replies.items():
            packet = unpack(reply)
            arrays = {name: array * (1e9 if client == 2 else 1.0) for name, array in packet.arrays.items()}
            changed[client] = pack(replace(packet, arrays=arrays))
        return changed

    run = advanced(server(AsynchronousSettings(buffer=3, concurrency=CLIENTS, delay="exponential"), tamper=absurd), 3)
    assert weights_of(run).norm() < 1e3
    assert run.tally.refused > 0
    assert run.tally.replies == 9


def test_a_reply_to_another_model_is_refused():
    """A client says the round that it worked in. A reply of another one would be decoded with the wrong seed."""

    def older(replies):
        return {client: pack(unpack(reply).stamped(round=7)) for client, reply in replies.items()}

    run = server(tamper=older)
    with pytest.raises(Exception, match="it is for round 7, not 0"):
        run.advance()


def test_what_is_under_way_is_checked_when_a_run_goes_on():
    run = advanced(server(), 3)
    found = run.under_way()
    for name, changed in {
        "flights": torch.full_like(found["flights"], 99),
        "arrivals": found["arrivals"] * float("nan"),
        "versions": found["versions"] + 1,
        "models": found["models"][:-1],
        "clock": found["clock"][:1],
    }.items():
        with pytest.raises(StorageError, match="damaged or replaced"):
            server().go_on({**found, name: changed})
    with pytest.raises(StorageError, match="all clients answer before a step"):
        federation(WORK, DATA).go_on(found)


@pytest.mark.parametrize("delay", ["lognormal", "half_normal", "exponential"])
def test_delays_have_their_mean(delay):
    """False alarm below 1e-6: five standard errors, and the largest variance is (e − 1)·mean², for a spread of 1."""
    settings = AsynchronousSettings(delay=delay, mean=3.0)
    drawn = [settings.drawn(PublicSeed(5).child("delay", place)) for place in range(4_000)]
    assert abs(sum(drawn) / len(drawn) - 3.0) < 5 * 3.0 * math.sqrt((math.e - 1) / len(drawn))
    assert min(drawn) >= 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"buffer": 0}, "asynchronous.buffer is a number of clients"),
        ({"concurrency": -1}, "asynchronous.concurrency is a number of clients"),
        ({"mean": -1.0}, "from 0 to 1e9"),
        ({"mean": float("nan")}, "from 0 to 1e9"),
        ({"spread": 9.0}, "from 0 to 5"),
        ({"delay": "gamma"}, "one of lognormal"),
        ({"starts": "never"}, "one of arrival, step"),
        ({"staleness": "linear"}, "one of sqrt, none"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, why):
    with pytest.raises(InputError, match=why):
        AsynchronousSettings(**settings)


def test_a_buffer_larger_than_the_run_is_refused():
    with pytest.raises(InputError, match=r"buffer = 10, but the run has 4 clients"):
        AsynchronousSettings().completed(4)
    with pytest.raises(InputError, match=r"the next step needs 10 updates"):
        AsynchronousSettings(starts="step", concurrency=5).completed(20)
    assert AsynchronousSettings(buffer=2).completed(4).together == 4
