"""Rounds of mean estimation over the wire."""

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Channel, make_codec
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.errors import InputError, WireError
from sketchfed.wire import pack

DIM, CLIENTS, SEED = 64, 6, PublicSeed(7)


def vectors(*shape: int, apart: float = 1.0) -> torch.Tensor:
    """A common vector and what clients have for themselves."""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(*shape[1:], DIM, generator=generator)
    return common + apart * torch.randn(*shape, DIM, generator=generator)


def codec(name: str, **options: object):
    return make_codec(name, dim=DIM, size=16, clients=CLIENTS, **options)


@pytest.mark.parametrize("name", CODECS)
def test_a_round_is_what_encoding_packing_and_decoding_give(name):
    x, channel, knowledge = vectors(CLIENTS), Channel(codec(name), SEED), None
    total = 0
    for round_ in range(2):
        seed = SEED.child("round", round_)
        packets = [codec(name).encode(row, seed, client) for client, row in enumerate(x)]
        total += sum(len(pack(codec(name).bare(packet))) for packet in packets)
        assert torch.equal(channel.mean(x), codec(name).decode(packets, seed, knowledge))
        knowledge = codec(name).learn(packets, seed, knowledge)
        assert (channel.rounds, channel.bytes_sent) == (round_ + 1, total)


def test_what_a_round_teaches_is_used_in_the_next():
    x = vectors(1).expand(CLIENTS, DIM)
    channel = Channel(codec("rand_proj_spatial", correlation="estimated"), SEED)
    first, *later = [float((channel.mean(x) - x[0]).square().sum()) for _ in range(9)]
    assert sum(later) / len(later) < 0.5 * first


def test_several_vectors_a_client_are_estimated_each_for_itself():
    x = vectors(CLIENTS, 3)
    channel = Channel(codec("rand_k"), SEED, prediction=True)
    rounds = [channel.mean(x) for _ in range(3)]
    assert rounds[0].shape == (3, DIM)
    assert channel.rounds == 3
    exact = Channel(codec("dense"), SEED).mean(x)
    assert torch.allclose(exact, x.mean(0), atol=1e-6)
    errors = [(mean - exact).square().sum(1) for mean in rounds]
    assert all(len(set(error.tolist())) == 3 for error in errors)


def test_those_who_are_absent_send_nothing_and_do_not_count():
    x, channel = vectors(CLIENTS, 2), Channel(codec("dense"), SEED)
    x[0, 0] = torch.nan
    present = torch.ones(CLIENTS, 2, dtype=torch.bool)
    present[0, 0] = present[:, 1] = False
    means = channel.mean(x, present)
    assert torch.allclose(means, torch.stack([x[1:, 0].mean(0), torch.zeros(DIM)]), atol=1e-6)
    sent = channel.bytes_sent
    channel.mean(vectors(CLIENTS, 2))
    assert channel.bytes_sent - sent == sent // (CLIENTS - 1) * 2 * CLIENTS


@pytest.mark.parametrize("prediction", [False, True])
def test_cohorts_may_change_from_round_to_round(prediction):
    """With three of six clients in turn, the errors are those of fewer clients and no more."""
    x, some = vectors(1).expand(CLIENTS, DIM), torch.arange(CLIENTS) % 2 == 0
    channel = Channel(codec("rand_k"), SEED, prediction=prediction)
    errors = [float((channel.mean(x, some if number % 2 else ~some) - x[0]).square().sum()) for number in range(80)]
    assert sum(errors[60:]) < 20 * 1.5 * float(x[0].square().sum())


def test_error_feedback_keeps_what_did_not_get_across():
    x, top = vectors(CLIENTS), codec("top_k")
    channel, memories = Channel(top, SEED, error_feedback=True), [None] * CLIENTS
    for round_ in range(3):
        seed = SEED.child("round", round_)
        sent = [encode_with_memory(top, row, memories[i], seed, i) for i, row in enumerate(x)]
        memories = [memory for _, memory in sent]
        assert torch.allclose(channel.mean(x), top.decode([packet for packet, _ in sent], seed), atol=1e-6)


@pytest.mark.parametrize("name", ["rand_k", "top_k"])
def test_under_error_feedback_nothing_is_lost_in_the_long_run(name):
    """What clients still owe stays bounded, so the mean of all rounds goes to the mean of the vectors like 1/rounds."""
    x = vectors(CLIENTS)
    channel = Channel(codec(name), SEED, error_feedback=True)
    means = torch.stack([channel.mean(x) for _ in range(100)]).mean(0)
    assert float((means - x.mean(0)).norm() / x.mean(0).norm()) < 20 / 100


@pytest.mark.parametrize("name", ["rand_k", "rand_proj_spatial", "top_k", "sketched"])
def test_prediction_takes_the_error_out_of_what_stays_the_same(name):
    x = vectors(CLIENTS, apart=0.0)
    channel = Channel(codec(name), SEED, prediction=True)
    errors = [float((channel.mean(x) - x[0]).square().sum()) for _ in range(60)]
    assert errors[-1] < 1e-3 * errors[0]


def test_prediction_with_few_numbers_does_not_run_away():
    """One number of 64 from each of two clients: as a base the last mean would have errors that grow by ω = 31 a round."""
    x = vectors(2)
    sparse = make_codec("rand_k", dim=DIM, size=1)
    channel = Channel(sparse, SEED, prediction=True)
    alone = Channel(sparse, SEED)
    predicted, plain = (sum(float((way.mean(x) - x.mean(0)).square().sum()) for _ in range(100)) for way in (channel, alone))
    assert predicted < 1.5 * plain


def test_without_variance_the_prediction_is_the_last_mean():
    """Biased codecs are contractions: what is encoded is the difference to the last mean."""
    x, channel = vectors(CLIENTS), Channel(codec("top_k"), SEED, prediction=True)
    last = channel.mean(x)
    packets = [codec("top_k").encode(row - last, SEED.child("round", 1), client) for client, row in enumerate(x)]
    assert torch.allclose(channel.mean(x), last + codec("top_k").decode(packets, SEED.child("round", 1)), atol=1e-6)


def test_error_feedback_and_prediction_go_together():
    """Both account for what was lost: the mean of all rounds still goes to the mean of the vectors."""
    x = vectors(CLIENTS)
    channel = Channel(codec("top_k"), SEED, error_feedback=True, prediction=True)
    means = torch.stack([channel.mean(x) for _ in range(100)]).mean(0)
    assert float((means - x.mean(0)).norm() / x.mean(0).norm()) < 20 / 100


def test_wild_packets_are_refused():
    channel = Channel(codec("dense", norm_bound=20.0), SEED)
    channel.mean(vectors(CLIENTS))
    with pytest.raises(WireError, match="above norm_bound"):
        channel.mean(100 * vectors(CLIENTS))


def test_what_is_no_round_is_refused():
    with pytest.raises(InputError, match="needs a codec and a seed"):
        Channel("rand_k", SEED)
    channel = Channel(codec("rand_k"), SEED)
    for shape in ((DIM,), (CLIENTS, DIM + 1), (0, DIM), (2, 2, 2, DIM)):
        with pytest.raises(InputError, match=r"vectors of shape \(clients, 64\)"):
            channel.mean(torch.zeros(shape))
    for present in (torch.ones(CLIENTS), torch.ones(CLIENTS, 1, dtype=torch.bool), torch.ones(2, dtype=torch.bool)):
        with pytest.raises(InputError, match=r"bool of shape \(6,\), got"):
            channel.mean(vectors(CLIENTS), present)
    channel.mean(vectors(CLIENTS))
    for other in (vectors(CLIENTS - 1), vectors(CLIENTS, 2)):
        with pytest.raises(InputError, match="the first round had 6 clients with 1 vectors each"):
            channel.mean(other)
