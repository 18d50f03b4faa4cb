"""Whatever a scripted server does, with accomplices within the assumed share, it learns whole sums only."""

import pytest
import weak_devices as weak
from hypothesis import HealthCheck, Phase, event, find, given, settings
from hypothesis import strategies as st
from scripted import Device, ScriptedServer, assert_learns_whole_sums_only
from scripts import Plan, plans, played
from test_scripted_moves import MATES, mates_on, ring, terms

HONEST = st.integers(0, 6)
COMPLETE = st.lists(
    plans(
        st.frozensets(HONEST, max_size=2),
        many=st.frozensets(HONEST),
        pairs=st.frozensets(st.tuples(HONEST, HONEST), max_size=6),
        wrong=st.frozensets(st.sampled_from(MATES), max_size=1),
    ),
    min_size=1,
    max_size=2,
).map(tuple)


def arc(start: int, length: int) -> frozenset[int]:
    """Clients in a row on the ring."""
    return frozenset(ring()._ring[(start + step) % 40] for step in range(length))


def both_ways(gaps: list[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Pairs of neighbours on the ring, by a place and a distance, in both orders."""
    near = [(ring()._ring[place], ring()._ring[(place + step) % 40]) for place, step in gaps]
    return frozenset(near + [(second, first) for first, second in near])


PLACE = st.integers(0, 39)
RING = st.tuples(
    plans(
        st.frozensets(PLACE, max_size=6) | st.builds(arc, PLACE, st.integers(1, 4)),
        many=st.frozensets(PLACE) | st.builds(arc, PLACE, st.integers(1, 39)),
        pairs=st.lists(st.tuples(PLACE, st.integers(1, 4)), max_size=12).map(both_ways),
        wrong=st.frozensets(st.sampled_from(mates_on(ring())), max_size=1),
    )
)
QUICK = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True)


def small(script: tuple[Plan, ...], device: type[Device] = Device) -> ScriptedServer:
    return played(ScriptedServer(terms(), MATES, device), script, terms)


def large(script: tuple[Plan, ...]) -> ScriptedServer:
    """On one ring: on another the accomplices, whose places are assumed, would sit elsewhere."""
    return played(ScriptedServer(ring(), mates_on(ring())), script, lambda **_: ring())


@QUICK
@given(COMPLETE)
def test_scripts_in_a_complete_graph_give_whole_sums_only(script):
    event(f"{assert_learns_whole_sums_only(small(script))} sums are opened")


@settings(QUICK, max_examples=6)
@given(RING)
def test_scripts_on_a_ring_give_whole_sums_only(script):
    event(f"{assert_learns_whole_sums_only(large(script))} sums are opened")


def learns_more(script: tuple[Plan, ...], device: type[Device]) -> bool:
    try:
        assert_learns_whole_sums_only(small(script, device))
    except AssertionError as error:
        return "learnt" in str(error)
    return False


FAULTS = {
    "copied state": (weak.Forgetful, ()),
    "sums joined twice": (weak.Rejoining, ()),
    "no signatures": (Device, (weak.without_signatures,)),
    "no proofs": (Device, (weak.without_proofs,)),
    "masks for any model": (weak.Trusting, ()),
}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("fault", FAULTS)
def test_scripts_find_every_fault_of_a_client(fault, monkeypatch):
    """The scripts are strong enough: against clients with one fault, one of them learns more than a sum."""
    device, patches = FAULTS[fault]
    for patch in patches:
        patch(monkeypatch)
    searching = settings(QUICK, max_examples=2_000, phases=[Phase.generate])
    assert find(COMPLETE, lambda script: learns_more(script, device), settings=searching)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("scripts", "play", "count"), [(COMPLETE, small, 3_000), (RING, large, 600)], ids=["complete", "ring"])
def test_many_scripts_give_whole_sums_only(scripts, play, count):
    @settings(QUICK, max_examples=count)
    @given(scripts)
    def check(script):
        assert_learns_whole_sums_only(play(script))

    check()
