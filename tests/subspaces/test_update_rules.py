"""Every rule against its textbook form with matrices written down, and what each finds."""

from hashlib import sha256

import numpy as np
import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.subspaces import UPDATES, HistoryPca, IncrementalSvd

DIM, SIZE = 120, 10


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def begun(rule, *, dim=DIM, size=SIZE, dtype=torch.float64, seed=3):
    return rule.begin(dim=dim, size=size, seed=PublicSeed(seed), dtype=dtype)


def dense(subspace):
    return subspace.adjoint(torch.eye(subspace.size, dtype=torch.float64)).T


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("inside", [True, False], ids=["sensed", "estimate"])
def test_history_pca_is_algorithm_2_as_printed(inside):
    rule = HistoryPca(energy=0.8)
    subspace = begun(rule)
    u, values = None, None
    for number in range(25):
        s, sensed = dense(subspace), normal(SIZE, seed=number)
        g = s @ sensed if inside else normal(DIM, seed=number)
        y = torch.outer(g, g) @ s if u is None else u @ torch.diag(values) + torch.outer(g, g) @ u
        subspace = rule.updated(subspace, **({"sensed": sensed} if inside else {"estimate": g}))
        q, r = torch.linalg.qr(y)
        values = r.square().sum(0).sqrt()
        close(subspace.values, values)
        found = subspace.basis.to_tensor()
        defined = 1 if u is None else SIZE  # the first matrix has rank one, and its other columns are arbitrary
        close(found[:, :defined], (q * r.diag().sign())[:, :defined])
        least = int((values.square().cumsum(0) < 0.8 * values.square().sum()).sum()) + 1
        assert subspace.kept == least
        close(dense(subspace)[:, :least], found[:, :least])
        u = found


@pytest.mark.parametrize("inside", [True, False], ids=["sensed", "estimate"])
def test_incremental_svd_keeps_the_leading_eigenvectors(inside):
    rule = IncrementalSvd(forgetting=0.9, share=0.6)
    subspace, past = begun(rule), torch.zeros(DIM, DIM, dtype=torch.float64)
    for number in range(25):
        sensed = normal(SIZE, seed=number)
        g = dense(subspace) @ sensed if inside else normal(DIM, seed=number)
        values, vectors = torch.linalg.eigh(0.9 * past + torch.outer(g, g))
        subspace = rule.updated(subspace, **({"sensed": sensed} if inside else {"estimate": g}))
        kept = min(6, number + 1)
        values, vectors = values.flip(0)[:kept], vectors.flip(1)[:, :kept]
        past = vectors @ torch.diag(values) @ vectors.T
        assert subspace.kept == subspace.basis.rank == kept
        close(subspace.values, values)
        found = subspace.basis.to_tensor()
        close(found @ torch.diag(values) @ found.T, past)


def test_frozen_never_changes_and_fresh_always_does():
    for name, same in (("frozen", True), ("fresh", False)):
        rule = UPDATES[name]()
        first = begun(rule)
        second = rule.updated(first, sensed=normal(SIZE))
        assert torch.allclose(dense(first), dense(second)) is same
        assert second.kept == 0


@pytest.mark.parametrize("name", UPDATES)
def test_probes_are_new_in_every_round_unless_frozen(name):
    rule = UPDATES[name]()
    subspace = begun(rule)
    draws = []
    for number in range(4):
        draws.append(subspace.draw)
        subspace = rule.updated(subspace, sensed=normal(SIZE, seed=number))
    assert draws == ([0, 0, 0, 0] if name == "frozen" else [0, 1, 2, 3])


@pytest.mark.parametrize("name", UPDATES)
def test_a_round_in_which_nothing_was_sensed_does_no_harm(name):
    rule = UPDATES[name]()
    subspace = begun(rule)
    for sensed in (torch.zeros(SIZE), normal(SIZE).float(), torch.zeros(SIZE), torch.zeros(SIZE)):
        subspace = rule.updated(subspace, sensed=sensed)
        s = dense(subspace)
        close(s.T @ s, torch.eye(SIZE, dtype=torch.float64))


@pytest.mark.parametrize("name", ["history_pca", "incremental_svd"])
def test_float32_subspaces_stay_orthonormal_for_hundreds_of_updates(name):
    rule, size = UPDATES[name](), 20
    subspace = begun(rule, dim=5_000, size=size, dtype=torch.float32)
    mean = 5 * normal(5_000, dtype=torch.float32) / 5_000**0.5
    for number in range(400):
        subspace = rule.updated(subspace, estimate=mean + subspace.adjoint(normal(size, seed=number, dtype=torch.float32)))
        if number % 100 == 99:
            s = subspace.adjoint(torch.eye(size)).double().T
            for columns in (s, subspace.basis.to_tensor().double()):
                close(columns.T @ columns, torch.eye(columns.shape[1], dtype=torch.float64), 1e-6)


def stream(rounds, *, dim, rank, drift):
    """Gradients in a random subspace of this rank that turns by `drift` a round, with a mean along its first direction."""
    frame = torch.linalg.qr(normal(dim, rank))[0]
    for number in range(rounds):
        frame = torch.linalg.qr(frame + drift * normal(dim, rank, seed=number + 1) / dim**0.5)[0]
        yield frame @ (normal(rank, seed=number) + 2 * torch.eye(rank, dtype=torch.float64)[0])


def captures(rule, **options):
    subspace = begun(rule, dim=600, size=30)
    captured, kept = [], []
    for g in stream(300, dim=600, rank=3, **options):
        captured.append(subspace.captured(g))
        kept.append(subspace.kept)
        subspace = rule.updated(subspace, sensed=subspace.apply(g))
    return np.mean(captured[-100:]), kept


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_incremental_svd_finds_a_planted_subspace_and_random_ones_do_not(drift):
    """Random subspaces capture size/dim = 5 % on average over gradients."""
    found = {name: captures(rule(), drift=drift)[0] for name, rule in UPDATES.items()}
    assert found["incremental_svd"] > 0.6
    assert found["frozen"] < 0.15
    assert found["fresh"] < 0.15
    assert found["incremental_svd"] > found["history_pca"]


def test_the_papers_rule_falls_to_rank_one():
    """With its energy ratio of 0.9 it first keeps most of a random subspace, probes and all, and then a single direction."""
    kept = captures(HistoryPca(energy=0.9), drift=0.0)[1]
    assert max(kept[:5]) > 15
    assert set(kept[30:]) == {1}


def numbers(label, index, count):
    """Standardised sums of two uniform numbers from a public seed: the same on every platform."""
    words = PublicSeed(5).child(label, index).words(2 * count).astype(np.float64) / 2**32
    return torch.from_numpy((words[:count] + words[count:] - 1) * 6**0.5).float()


DIGESTS = {
    "history_pca": "ffeb30b878e39005",
    "incremental_svd": "345c136ced954305",
    "frozen": "82079e6a4c53829d",
    "fresh": "362ce33ae320124c",
}


@pytest.mark.parametrize("name", UPDATES)
def test_every_machine_gets_the_same_bits(name):
    rule = UPDATES[name]()
    subspace = begun(rule, dim=5_003, size=24, dtype=torch.float32)
    for number in range(60):
        subspace = rule.updated(subspace, sensed=numbers("sensed", number, 24))
    results = [*subspace.tensors().values(), subspace.adjoint(numbers("y", 0, 24)), subspace.diagonal()]
    digest = sha256(b"".join(t.contiguous().numpy().tobytes() for t in results)).hexdigest()[:16]
    assert digest == DIGESTS[name]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give one of the two"),
        ({"sensed": torch.zeros(SIZE), "estimate": torch.zeros(DIM)}, "give one of the two"),
        ({"sensed": torch.zeros(DIM)}, f"one vector of {SIZE} numbers"),
        ({"estimate": torch.zeros(2, DIM)}, f"one vector of {DIM} numbers"),
        ({"estimate": torch.full((DIM,), float("nan"))}, "finite"),
        ({"sensed": torch.full((SIZE,), float("nan"))}, "NaN"),
    ],
)
def test_what_is_no_update_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        IncrementalSvd().updated(begun(IncrementalSvd()), **given)


@pytest.mark.parametrize(
    ("rule", "options"),
    [(HistoryPca, {"energy": 0}), (IncrementalSvd, {"forgetting": 1.1}), (IncrementalSvd, {"share": 1})],
)
def test_options_out_of_range_are_refused(rule, options):
    with pytest.raises(InputError, match=next(iter(options))):
        rule(**options)


def test_a_size_of_one_has_no_room_for_both():
    with pytest.raises(InputError, match="size of 2 or more"):
        begun(IncrementalSvd(), size=1)
