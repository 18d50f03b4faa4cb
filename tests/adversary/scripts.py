"""Scripts of moves against secure sums, drawn at random: what the server does at each stage of one or two sums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from hypothesis import strategies as st
from scripted import ScriptedServer

from sketchfed.secure import Terms

STEPS = ("begin", "show", "deliver", "propose", "open", "accuse")
Some = frozenset[int]


@dataclass(frozen=True)
class Plan:
    """What the server does in one sum. Where all sets are empty, it is honest."""

    session: int = 0
    round: int = 0
    absent: Some = frozenset()
    """Who is not asked for values in time, but late."""
    hidden: Some = frozenset()
    """Whose keys are hidden from those who are misinformed."""
    misinformed: Some = frozenset()
    withheld: frozenset[tuple[int, int]] = frozenset()
    deceived: Some = frozenset()
    """Who is sent another model than the others."""
    gone: Some = frozenset()
    """Who is said to have left."""
    others_gone: Some = frozenset()
    """The same in a second list, which is shown to some clients."""
    misled: Some = frozenset()
    accused: Some = frozenset()
    wrong: Some = frozenset()
    """Accomplices that deal wrongly."""
    extra: tuple[tuple[int, str], ...] = ()
    """Steps that are made once more, or out of turn: before which step, and which one."""
    replayed: frozenset[str] = frozenset()
    """Stages of which all earlier requests are sent again at the end, under the name of this sum."""
    in_turns: bool = False

    def steps(self) -> list[str]:
        made = list(STEPS)
        for at, step in sorted(self.extra, reverse=True):
            made.insert(at, step)
        return made


def played(server: ScriptedServer, plans: tuple[Plan, ...], make: Callable[..., Terms]) -> ScriptedServer:
    """Carry out the plans one after the other, or in turns if the first says so: a step of each at a time."""
    steps = [_steps(server, plan, make(session=plan.session, round=plan.round)) for plan in plans]
    for _ in zip_longest(*steps) if plans[0].in_turns else chain(*steps):
        pass
    for plan in plans:
        own = make(session=plan.session, round=plan.round)
        for stage in sorted(plan.replayed):
            server.replay(stage, server.honest, own)
        server.open(own)
    return server


def _steps(server: ScriptedServer, plan: Plan, own: Terms) -> Iterator[None]:
    everybody = frozenset(server.honest)
    for step in plan.steps():
        match step:
            case "begin":
                server.begin(own)
            case "show":
                server.wrong = set(plan.wrong)
                server.show(own, everybody - plan.misinformed)
                server.show(own, plan.misinformed, without=plan.hidden)
            case "deliver":
                server.deliver(own, everybody - plan.absent, withheld=plan.withheld, other_model=plan.deceived)
            case "propose":
                asked = everybody - plan.absent
                server.propose(own, set(own.clients) - plan.gone - plan.absent, asked - plan.misled)
                server.propose(own, set(own.clients) - plan.others_gone, asked & plan.misled)
            case "open":
                server.open(own, everybody - plan.absent)
                server.deliver(own, plan.absent, other_model=plan.deceived)
            case "accuse":
                server.accuse(own, plan.accused)
        yield


def plans(
    few: st.SearchStrategy[Some],
    *,
    many: st.SearchStrategy[Some],
    pairs: st.SearchStrategy[frozenset[tuple[int, int]]],
    wrong: st.SearchStrategy[Some],
) -> st.SearchStrategy[Plan]:
    """Plans with these sets of clients and pairs of clients, each of them empty half of the time."""
    stages = st.frozensets(st.sampled_from(("keys", "shares", "masked", "consent", "unmask", "recover")), max_size=2)
    extra = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(STEPS)), max_size=2).map(tuple)

    def often_none(some: st.SearchStrategy) -> st.SearchStrategy:
        return st.just(frozenset()) | some

    return st.builds(
        Plan,
        session=st.integers(0, 1),
        round=st.integers(0, 1),
        absent=often_none(few),
        hidden=often_none(few),
        misinformed=often_none(many),
        withheld=often_none(pairs),
        deceived=often_none(many),
        gone=often_none(few),
        others_gone=often_none(few),
        misled=often_none(many),
        accused=often_none(few),
        wrong=often_none(wrong),
        extra=st.just(()) | extra,
        replayed=often_none(stages),
        in_turns=st.booleans(),
    )
