"""A scripted server and its accomplices make their moves against real clients of secure sums. Each test asks what they learn.

Every move is made twice: against clients as they are, where sums of at least `least` are all that is learnt, and against
clients with one fault, where the same move must give more. The second shows that the first could fail.
"""

from contextlib import nullcontext

import pytest
import weak_devices as weak
from scripted import Device, ScriptedServer, assert_learns_whole_sums_only

from sketchfed.secure import Terms

MATES = (7, 8)
V = 2
"""The victim."""


def terms(*, session: int = 0, round: int = 0, **changes) -> Terms:
    """Nine clients in a complete graph, two of them in league with the server: 2·6 > 9 + 2."""
    given = {"clients": tuple(range(9)), "size": 3, "bits": 16, "neighbours": 8, "threshold": 6, "least": 7}
    return Terms(session=bytes([session] * 16), round=round, **given | changes)


def ring(**changes) -> Terms:
    """Forty clients on a ring."""
    return terms(**{"clients": tuple(range(40)), "neighbours": 8, "threshold": 6, "least": 30, "spread": 2} | changes)


def mates_on(ring: Terms, *places: int) -> list[int]:
    return [ring._ring[place] for place in places or (0, 10, 20, 30)]


def both(*faults, device=Device):
    """Run a test against clients as they are, and against clients with a fault."""
    return pytest.mark.parametrize(("faults", "device"), [((), Device), (faults, device)], ids=["as they are", "with a fault"])


def outcome(faults, device, learnt: str = "learnt"):
    """What the assertion should do."""
    return pytest.raises(AssertionError, match=learnt) if faults or device is not Device else nullcontext()


def test_an_honest_run_opens_one_sum_of_all_who_stayed():
    """The computation of what is learnt is no fiction: it finds the sum, with the values that the clients added."""
    for sum_terms, mates in ((terms(), MATES), (ring(), mates_on(ring()))):
        server = ScriptedServer(sum_terms, mates)
        server.run(sum_terms, gone=[V])
        assert assert_learns_whole_sums_only(server) == 1
        (learnt,) = server.learns.learnt()
        assert {row.client for row in learnt.parts} == set(server.honest) - {V}


@pytest.mark.parametrize("last", ["begin", "show", "deliver", "propose"])
def test_a_sum_that_is_stopped_early_tells_nothing(last):
    server, own = ScriptedServer(terms(), MATES), terms()
    steps = {
        "begin": lambda: server.begin(own),
        "show": lambda: server.show(own),
        "deliver": lambda: server.deliver(own),
        "propose": lambda: server.propose(own, own.clients),
    }
    for name, step in steps.items():
        step()
        if name == last:
            break
    assert assert_learns_whole_sums_only(server) == 0


def test_an_attempt_after_an_early_stop_is_another_sum():
    """A server that stops after `deliver` and begins anew gets one sum of the second attempt, and nothing of the first."""
    server, first, second = ScriptedServer(terms(), MATES), terms(), terms(round=1)
    server.begin(first), server.show(first), server.deliver(first)
    server.run(second, gone=[V])
    server.propose(first, first.clients), server.open(first)
    assert assert_learns_whole_sums_only(server) == 2
    assert V in {row.client for each in server.learns.learnt() for row in each.parts}


@both(device=weak.Forgetful)
def test_both_shares_of_a_client_are_not_told_to_a_server_that_shows_two_lists_one_after_the_other(faults, device):
    """Copied state: clients answer `consent` and `unmask` with one list, and are asked once more with another."""
    server, own = ScriptedServer(terms(), MATES, device), terms()
    server.run(own)
    server.propose(own, set(own.clients) - {V})
    server.open(own)
    with outcome(faults, device, r"honest clients: \[2\]"):
        assert assert_learns_whole_sums_only(server) == 1


@both(device=weak.Forgetful)
def test_a_mask_is_not_used_for_two_values(faults, device):
    """Copied state: `masked` is asked for twice, the second time without one box, so that it is another request."""
    server, own = ScriptedServer(terms(), MATES, device), terms()
    server.begin(own), server.show(own)
    server.deliver(own), server.deliver(own, [V], withheld={(MATES[0], V)})
    with outcome(faults, device, "learnt a difference"):
        assert assert_learns_whole_sums_only(server) == 0


@pytest.mark.parametrize("on_a_ring", [False, True], ids=["complete", "ring"])
@pytest.mark.parametrize("others", ["all but the victim", "half"])
@both(device=weak.Trusting)
def test_clients_that_were_sent_different_models_open_nothing(faults, device, others, on_a_ring):
    """With another model, updates can be made to vanish, and the sum of all is then one client's (Pasquini et al. 2022)."""
    own = ring() if on_a_ring else terms()
    server = ScriptedServer(own, mates_on(own) if on_a_ring else MATES, device)
    victim = server.honest[0]
    some = set(server.honest) - {victim} if others == "all but the victim" else set(server.honest[1::2])
    server.begin(own), server.show(own), server.deliver(own, other_model=some)
    server.propose(own, own.clients)
    server.open(own)
    with outcome(faults, device, "different models"):
        assert assert_learns_whole_sums_only(server) == 0


@both(weak.without_signatures)
def test_clients_that_are_shown_different_lists_at_the_same_time_open_nothing(faults, device, monkeypatch):
    """Four clients and both accomplices say that the victim left; the victim and two others say that it stayed."""
    for fault in faults:
        fault(monkeypatch)
    server, own = ScriptedServer(terms(), MATES, device), terms()
    server.begin(own), server.show(own), server.deliver(own)
    server.propose(own, set(own.clients) - {V}, [0, 1, 3, 4])
    server.propose(own, own.clients, [V, 5, 6])
    server.open(own)
    with outcome(faults, device, r"honest clients: \[2\]"):
        assert assert_learns_whole_sums_only(server) <= 1


def test_a_list_of_fewer_than_the_least_is_not_opened():
    server, own = ScriptedServer(terms(), MATES), terms()
    server.run(own, gone=[4, 5, 6])
    assert assert_learns_whole_sums_only(server) == 0


@both(device=weak.Undemanding)
def test_terms_with_a_smaller_least_than_agreed_are_not_joined(faults, device):
    server, own = ScriptedServer(terms(), MATES, device), terms(least=6)
    server.run(own, gone=[4, 5, 6])
    with outcome(faults, device, "a sum of 4 honest clients"):
        assert assert_learns_whole_sums_only(server) == 0


def test_clients_that_were_told_different_terms_open_nothing():
    """Half of the clients are told another round. Neither half takes the keys of the other."""
    server, first, second = ScriptedServer(terms(), MATES), terms(), terms(round=1)
    for own, clients in ((first, range(4)), (second, range(4, 9))):
        server.begin(own, clients), server.show(own, clients), server.deliver(own, clients)
        server.propose(own, own.clients, clients), server.open(own, clients)
    assert not server.learns.rows
    assert assert_learns_whole_sums_only(server) == 0


def test_clients_that_were_shown_different_keys_open_nothing_together():
    """Half of the clients do not see the victim's keys. Boxes and signatures of one half are worth nothing in the other."""
    server, own = ScriptedServer(terms(), MATES), terms()
    server.begin(own)
    server.show(own, [0, 1, V, 3]), server.show(own, [4, 5, 6], without=[V])
    server.deliver(own), server.propose(own, own.clients), server.open(own)
    assert any("dealt shares that open" in refusal for refusal in server.refusals)
    assert assert_learns_whole_sums_only(server) == 0


@both(device=weak.Rejoining)
def test_three_sums_on_the_same_terms_with_different_claimed_dropouts_give_nobody_away(faults, device):
    """The attack that opened one client's update: mask keys of its neighbours from two sums, its own seed from the third."""
    server, own = ScriptedServer(terms(), MATES, device), terms()
    for gone in ([0, 1], [3, 4], [5, 6]):
        server.run(own, gone=gone)
    with outcome(faults, device, "learnt a"):
        assert assert_learns_whole_sums_only(server) == 1
    alone = {row.client for each in server.learns.learnt() for row in each.parts if len(each.parts) == 1}
    assert alone == (set() if device is Device else set(server.honest))


@pytest.mark.parametrize("other", ["round", "session"])
def test_three_sums_of_other_rounds_or_sessions_are_three_whole_sums(other):
    """Early stops, claimed dropouts and new attempts: three sums of different clients are learnt, each of at least `least`."""
    server = ScriptedServer(terms(), MATES)
    for number, gone in enumerate(([0, 1], [3, 4], [])):
        server.run(terms(**{other: number}), gone=gone)
    assert assert_learns_whole_sums_only(server) == 3


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "consent", "unmask", "recover"])
@pytest.mark.parametrize("other", [{}, {"round": 1}, {"session": 1}], ids=["same", "round", "session"])
def test_requests_of_one_sum_give_nothing_more_when_they_are_replayed(stage, other):
    """As they were, or under the name of another sum that the clients have joined. Later requests of the first come late."""
    server, own = ScriptedServer(terms(), MATES), terms()
    server.run(own, gone=[V])
    server.accuse(own, [V])
    again = terms(**other)
    if other:
        server.begin(again), server.show(again), server.deliver(again)
    server.replay(stage, server.honest, again if other else None)
    server.open(again), server.open(own)
    assert assert_learns_whole_sums_only(server) <= 2


@pytest.mark.parametrize("skipped", ["show", "deliver", "propose"])
def test_a_stage_that_is_skipped_ends_the_sum(skipped):
    server, own = ScriptedServer(terms(), MATES), terms()
    other = terms(round=1)
    server.run(other)
    server.begin(own)
    for name in ("show", "deliver", "propose"):
        if name != skipped:
            getattr(server, name)(own, *([own.clients] if name == "propose" else []))
    server.replay("unmask", server.honest, own)
    server.show(own), server.deliver(own), server.propose(own, own.clients), server.open(own)
    assert assert_learns_whole_sums_only(server) == 1


def test_values_that_come_after_the_list_was_signed_stay_hidden():
    """The victim answers `masked` late. The others have told the key of its masks, and its own mask stays."""
    server, own = ScriptedServer(terms(), MATES), terms()
    server.begin(own), server.show(own)
    server.deliver(own, set(server.honest) - {V})
    server.propose(own, set(own.clients) - {V}, set(server.honest) - {V}), server.open(own, set(server.honest) - {V})
    assert server.deliver(own, [V]) == {V}
    server.propose(own, own.clients, [V]), server.open(own, [V]), server.accuse(own, [V])
    assert assert_learns_whole_sums_only(server) == 1


@both(weak.without_proofs)
def test_masks_with_honest_survivors_are_not_told_on_an_accusation(faults, device, monkeypatch):
    """The server has enough shares of everybody's seed to write down something like a proof."""
    for fault in faults:
        fault(monkeypatch)
    server, own = ScriptedServer(terms(), MATES, device), terms()
    server.run(own)
    server.accuse(own, set(own.clients))
    with outcome(faults, device, "learnt a sum of 1 honest"):
        assert assert_learns_whole_sums_only(server) == 1


def test_an_accomplice_that_dealt_wrongly_is_convicted_and_nothing_more_is_learnt():
    server, own = ScriptedServer(terms(), MATES), terms()
    server.wrong = {MATES[0]}
    server.run(own, gone=[V])
    assert server.accuse(own, [MATES[0], V]) == set(server.honest) - {V}
    assert assert_learns_whole_sums_only(server) == 1


# Sybils -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "alone"), [(2, False), (3, True)])
def test_identities_of_the_servers_own_beyond_the_assumed_share_open_a_client(count, alone):
    """With 2·threshold > n + c all is well. With one accomplice more, two lists find enough signatures, and the victim is open.

    Nothing in the protocol can stop that: the directory of identities must come from somebody whom the clients trust.
    """
    own = terms()
    server = ScriptedServer(own, range(9 - count, 9))
    server.begin(own), server.show(own), server.deliver(own)
    honest = [client for client in server.honest if client != V]
    server.propose(own, set(own.clients) - {V}, honest[:3])
    server.propose(own, own.clients, [V, *honest[3:]])
    server.open(own)
    assert (server.learns.both_secrets() == {V}) == alone
    assert any([row.client for row in each.parts] == [V] for each in server.learns.learnt()) == alone


def test_identities_that_are_not_in_the_directory_take_no_part():
    """Terms that name two more clients, whom no honest client knows."""
    server, own = ScriptedServer(terms(), MATES), terms(clients=tuple(range(11)), neighbours=10)
    server.accomplices |= {9, 10}
    server.run(own)
    assert any("client 9 is not in the directory" in refusal for refusal in server.refusals)
    assert not server.learns.rows


# On a ring --------------------------------------------------------------------------------------------------------------


@both(weak.without_gaps)
def test_a_ring_is_not_cut_in_two_by_claimed_dropouts(faults, device, monkeypatch):
    """The clients at two cuts are said to have left; one of four in a row at each cut is an accomplice."""
    for fault in faults:
        fault(monkeypatch)
    own = ring(least=20, threshold=6)
    server = ScriptedServer(own, mates_on(own), device)
    gone = {own._ring[place] for cut in (10, 30) for place in (cut - 1, cut + 1, cut + 2)}
    server.run(own, gone=gone)
    with outcome(faults, device, "learnt a sum of 1"):
        assert assert_learns_whole_sums_only(server) == 0


@both(weak.with_neighbours_as_witnesses)
def test_regions_of_a_ring_that_are_shown_different_lists_do_not_open_a_smaller_sum(faults, device, monkeypatch):
    """Each list is long enough. Both regions together would open a sum without those who are missing in either list."""
    for fault in faults:
        fault(monkeypatch)
    own = ring(clients=tuple(range(80)), neighbours=12, threshold=8, least=70, spread=3)
    places, half = own._ring, 40
    mates = [places[place + step] for place in (0, half) for step in (-1, 0)]
    server = ScriptedServer(own, mates, device)
    server.begin(own), server.show(own), server.deliver(own)
    regions = places[:half], places[half:]
    for region in regions:
        server.propose(own, set(own.clients) - set(region[10:30:3]), region)
    server.open(own)
    with outcome(faults, device, "learnt a sum of 62 honest"):
        assert assert_learns_whole_sums_only(server) <= 1


def cut_between(own: Terms, place: int, mates: int) -> tuple[int, set[int], set[int], int]:
    """Two clients that are neighbours/2 places apart, and between them accomplices and clients that are said to have left."""
    first, *between, second = (own._ring[(place + step) % len(own.clients)] for step in range(own.neighbours // 2 + 1))
    return first, set(between[:mates]), set(between[mates:]), second


@pytest.mark.parametrize("one_way", [True, False], ids=["one way", "both ways"])
@pytest.mark.parametrize(("mates", "threshold"), [(1, 7), (1, 6), (2, 8), (2, 7)])
def test_boxes_that_are_withheld_at_two_cuts_split_a_ring_only_below_the_planned_threshold(mates, threshold, one_way):
    """Clients inside of two cuts do not get the boxes of those outside, so no mask ties them to these.

    They refuse the list of survivors, but others can open their seeds: all of their neighbours who stayed and do not refuse,
    at most neighbours/2 + 1 and the accomplices at the cut. (One fewer if boxes are withheld in both directions.) Planned
    thresholds are above that.
    """
    own = ring(spread=mates + 1, threshold=threshold)
    cuts = [cut_between(own, place, mates) for place in (12, 32)]
    withheld = {(cuts[0][0], cuts[0][3]), (cuts[1][3], cuts[1][0])}
    if not one_way:
        withheld |= {(holder, dealer) for dealer, holder in withheld}
    server = ScriptedServer(own, set().union(*(cut[1] for cut in cuts)))
    server.begin(own), server.show(own)
    server.deliver(own, withheld=withheld)
    server.propose(own, set(own.clients) - set().union(*(cut[2] for cut in cuts)))
    server.open(own)
    learnt = server.learns.learnt()
    holders = own.neighbours // 2 + mates + one_way
    assert len(learnt) == (0 if holders < threshold else 1 if one_way else 2)
    assert all(len(each.parts) < own.least - len(server.accomplices) for each in learnt)
