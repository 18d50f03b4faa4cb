"""What views hold, and what they do not: nobody's data, no weights but those that were sent, no seed of noise."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from recorded_runs import compared, distance, recorded
from torch import Tensor, nn

from sketchfed.attacks import View
from sketchfed.audits.evidence import Evidence
from sketchfed.rounds import Exchange
from sketchfed.seeds import SecretSeed
from sketchfed.vectors import Layout
from sketchfed.wire import Packet, pack, unpack

NOISE = {"noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 77}
CASES = {
    "fedavg": {},
    "iterative": {"algorithm": {"name": "iterative", "participation": 0.6}},
    "noise": {"privacy": NOISE},
    "noise under secure sums": {"privacy": NOISE | {"name": "discrete_gaussian"}, "secure": {}},
    "dbcl": {"algorithm": {"name": "dbcl", "output": "sketched", "biases": "sketched"}},
    "dome": {"algorithm": {"name": "dome"}, "subspace": {"size": 60}},
}


def walked(thing: object, known: set[int] | None = None) -> Iterator[object]:
    """All that can be reached from something by attributes and elements, caches too."""
    known = set() if known is None else known
    if id(thing) in known or isinstance(thing, type | str | bytes | int | float | bool | None):
        return
    known.add(id(thing))
    yield thing
    inside: list[object] = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, dict):
        inside += [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside += list(thing)
    for each in inside:
        yield from walked(each, known)


def used(view: View) -> View:
    """The same, after it was made use of."""
    list(view.updates())
    view.replicas()
    return view


def tensors(view: View) -> list[Tensor]:
    return [thing for thing in walked(used(view)) if isinstance(thing, Tensor)]


def holds(tensor: Tensor, rows: Tensor) -> bool:
    """Whether a tensor has one of these rows in it, wherever."""
    flat, wanted = tensor.detach().double().reshape(-1), rows.double().flatten(1)
    if len(flat) < wanted.shape[1]:
        return False
    windows = flat.unfold(0, wanted.shape[1], 1)
    return any(bool((windows == row).all(1).any()) for row in wanted)


def views(run: Evidence) -> dict[str, View]:
    return {role: run.view(role) for role in run.roles}


@pytest.mark.parametrize("case", CASES)
def test_views_hold_nobody_elses_examples(case):
    run = recorded(CASES[case])
    for view in views(run).values():
        others = [client for client in range(5) if client not in view.members]
        rows = torch.cat([run.workload.examples(client).x[:3] for client in others])
        assert set(view.own) == set(view.members)
        assert all(each.client in view.members for each in view.exchanges if view.members)
        kept = [own.x for own in view.own.values()]
        assert not [t.shape for t in tensors(view) if not any(t is x for x in kept) and holds(t, rows)]


def test_who_looks_for_examples_in_tensors_finds_them():
    run = recorded()
    rows = run.workload.examples(1).x
    assert holds(torch.cat([torch.zeros(3), rows[4], torch.ones(2)]), rows)
    assert not holds(torch.cat([torch.zeros(3), rows[4] + 1e-6, torch.ones(2)]), rows)


@pytest.mark.parametrize("case", CASES)
def test_the_model_of_a_view_has_no_weights(case):
    for view in views(recorded(CASES[case])).values():
        modules = [thing for thing in walked(used(view)) if isinstance(thing, nn.Module)]
        assert modules
        assert not [name for module in modules for name, parameter in module.named_parameters() if parameter.any()]


@pytest.mark.parametrize("case", CASES)
def test_no_seed_of_noise_is_in_a_view(case):
    for view in views(recorded(CASES[case])).values():
        things = list(walked(used(view)))
        assert not [thing for thing in things if isinstance(thing, SecretSeed)]
        assert not [thing for thing in things if getattr(thing, "insecure_noise_seed", None) is not None]


@pytest.mark.parametrize("ways", [{}, {"output": "sketched", "biases": "sketched"}, {"output": "withheld"}], ids=str)
def test_first_weights_that_are_secret_are_in_no_view(ways):
    """Neither as tensors nor in the bytes that passed; what is sent in plain is no secret."""
    run = recorded(name="dbcl", **ways)
    first = Layout.of(run.workload.module).views(run.weights[0])
    secret = next(iter(first.values()))
    for view in views(run).values():
        assert view.public.start is None
        assert not [t.shape for t in tensors(view) if holds(t, secret)]
        raw = secret[0].numpy().tobytes()
        assert not [each for each in view.exchanges if raw in each.request or raw in (each.reply or b"")]


def test_only_servers_are_given_the_final_weights_where_clients_are_not_shown_them():
    blind, shown = recorded(name="dbcl"), recorded()
    assert [role for role in blind.roles if blind.view(role).released is not None] == ["server"]
    assert all(shown.view(role).released is shown.final for role in shown.roles)


# What is not a reply that the server would take -------------------------------------------------------------------------


def changed(run: Evidence, client: int, change) -> Evidence:
    """The same run, with other replies of a client."""

    def other(each: Exchange) -> Exchange:
        return replace(each, reply=change(each.reply, each.round)) if each.client == client else each

    return replace(run, exchanges=[other(each) for each in run.exchanges])


def repacked(reply: bytes, **changes: object) -> bytes:
    packet = unpack(reply)
    fields = {"kind": packet.kind, "arrays": packet.arrays, "clients": packet.clients, "scalars": packet.scalars}
    return pack(Packet(**fields | changes))


BAD = {
    "nothing": lambda reply, index: b"",
    "garbage": lambda reply, index: b"\x07" * 100,
    "half of it": lambda reply, index: reply[: len(reply) // 2],
    "a flipped bit": lambda reply, index: reply[:-1] + bytes([reply[-1] ^ 1]),
    "another round": lambda reply, index: pack(unpack(reply).stamped(round=index + 1)),
    "no round": lambda reply, index: repacked(reply, scalars={}),
    "another kind": lambda reply, index: repacked(reply, kind="snapshot"),
    "of many clients": lambda reply, index: repacked(reply, clients=9),
    "other arrays": lambda reply, index: repacked(reply, arrays={"values": torch.zeros(3)}),
    "no answer": lambda reply, index: None,
}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("case", ["fedavg", "iterative", "dbcl", "dome"])
def test_replies_that_the_server_would_refuse_are_passed_over(case, how):
    run = recorded(CASES[case], participation=1.0)
    bad = changed(run, 2, BAD[how])
    found = list(compared(bad, "server"))
    assert [update.clients[0] for update, _, _ in found] == [client for _ in range(3) for client in (0, 1, 3, 4)]
    assert all(distance(seen, values) < 1e-4 for _, seen, values in found)


def test_a_reply_that_overflows_is_passed_over():
    """Finite on the wire, infinite once it is decoded: numbers drawn at random are multiplied."""
    run = recorded({"codec": {"name": "rand_k"}})

    def huge(reply: bytes, index: int) -> bytes:
        arrays = {name: torch.full_like(array, 3e38) for name, array in unpack(reply).arrays.items()}
        return repacked(reply, arrays=arrays)

    clients = {update.clients[0] for update in changed(run, 2, huge).view("server").updates()}
    assert clients == {0, 1, 3, 4}


def test_tasks_that_nobody_can_read_leave_a_round_out():
    run = recorded(name="iterative", rounds=4)
    torn = [replace(each, request=b"torn") if each.round == 3 else each for each in run.exchanges]
    assert {update.round for update in replace(run, exchanges=torn).view("server").updates()} == {0, 1, 2}


def test_a_view_of_nothing_sees_nothing():
    view = replace(recorded().view("server"), exchanges=[])
    assert not list(view.updates())
    assert view.replicas() == {}
