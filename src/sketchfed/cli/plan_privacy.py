"""`sketchfed plan privacy`: the noise that an ε takes, by the papers' formulas and by the accountants."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sketchfed.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from rich.table import Table

    from sketchfed.privacy.claims import Claim, Unit

_DRAWS = 10_000_000  # the most places in cohorts that are drawn to count participations; beyond it, a bound is stated


@dataclass(frozen=True, kw_only=True)
class _Group:
    """One assumption about what the observer sees, and its consequences."""

    title: str
    mean: str
    claim: "Claim"
    releases: int
    sampling: float


def privacy(
    epsilon: Annotated[float, typer.Option(help="The budget for all rounds together.")] = 3.0,
    delta: Annotated[
        float, typer.Option(help="The probability left out; below 1/units, or one of them may be published.")
    ] = 1e-5,
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 1_000,
    cohort: Annotated[int | None, typer.Option(help="Clients of a round. [default: all]")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 200,
    unit: Annotated[str, typer.Option(help="Who is hidden: a client with all that it has, or one example.")] = "client",
    examples: Annotated[int | None, typer.Option(help="Examples of a client, for --unit example.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples expected in a batch, for --unit example.")] = None,
    local_steps: Annotated[int, typer.Option(help="Noisy gradient steps of a client in a round, for --unit example.")] = 1,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="add-remove: there or not; zero-out: sends its vector or zeros; replace-one: this vector or that, at about "
            "twice the noise. [default: zero-out where the observer sees who takes part, else add-remove]"
        ),
    ] = None,
    clip: Annotated[float, typer.Option(help="The norm that no unit's vector exceeds.")] = 1.0,
    participations: Annotated[
        int | None, typer.Option(help="Most rounds of one client. [default: counted in the cohorts that --seed draws]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the run, from which everybody can draw its cohorts.")] = 0,
    dim: Annotated[int | None, typer.Option(help="Parameters of the model, to see the length of the noise.")] = None,
) -> None:
    """The noise that an ε takes: by the papers' own formulas, by zCDP, RDP and PLD, and what each of them is really worth.

    Noise is in multiples of the clip norm, on the *sum* of a round; on the mean it is that times clip over the number of units.
    `true ε` is what PLD says of each, and `× PLD` how many times the noise that is needed. Run on PLD or RDP: a formula
    that asks for more wastes accuracy, and one marked **not kept** promises what it does not hold.

    Sampling makes noise go further only if the observer cannot see who was sampled. Cohorts that are drawn from a public
    seed hide nothing: then a client pays for each round that it takes part in, and the noise must do for the one with the most.
    If the server draws them in secret, each client with probability cohort/clients, that counts against the public, never
    against the server. Batches that a client draws in secret count against everybody. Passes hide nothing, but an example pays
    for one sum a pass only.

    `sketchfed plan privacy --epsilon 3 --delta 1e-5 --clients 1000 --cohort 100 --rounds 200`

    `sketchfed plan privacy --unit example --examples 600 --batch 60 --clients 100 --rounds 300`
    """
    from rich.console import Console

    from sketchfed.privacy.claims import check_delta, check_epsilon

    check_epsilon(epsilon)
    size = _checked(clients, cohort, rounds, unit, examples, batch, local_steps, clip, participations, dim)
    drawn = None if unit == "client" else _drawn(examples, batch)
    check_delta(delta, clients if examples is None else clients * examples)
    most, how = _most_rounds(clients, size, rounds, seed, participations)
    if drawn is None:
        groups, summed = _client_groups(delta, adjacency, clients, size, rounds, most, how), size
    else:
        groups, summed = _example_groups(delta, adjacency, *drawn, local_steps, most, how), drawn[1]
    console = Console()
    for number, group in enumerate(groups):
        if number:
            console.print()
        table, caption = _table(group, epsilon, rounds * local_steps, clip, summed, dim)
        console.print(group.title, highlight=False)
        console.print(table)
        console.print(caption, highlight=False)


def _checked(
    clients: int,
    cohort: int | None,
    rounds: int,
    unit: str,
    examples: int | None,
    batch: int | None,
    local_steps: int,
    clip: float,
    participations: int | None,
    dim: int | None,
) -> int:
    """The size of the cohort, after checking that all options fit each other."""
    for name, value in (
        ("clients", clients),
        ("cohort", cohort),
        ("rounds", rounds),
        ("examples", examples),
        ("batch", batch),
        ("local-steps", local_steps),
        ("participations", participations),
        ("dim", dim),
    ):
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}.")
    if not 0 < clip < float("inf"):
        raise InputError(f"--clip must be a positive number, got {clip}. Without a bound on what one adds, no noise is enough.")
    size = clients if cohort is None else cohort
    if size > clients:
        raise InputError(f"--cohort {size:,} exceeds --clients {clients:,}. A cohort is the clients of one round.")
    if participations is not None and participations > rounds:
        raise InputError(f"--participations {participations:,} exceeds --rounds {rounds:,}. Nobody takes part more often.")
    if unit not in ("client", "example"):
        raise UnknownNameError("unit", unit, ("client", "example"))
    if unit == "client":
        for name, value in (
            ("examples", examples),
            ("batch", batch),
            ("local-steps", None if local_steps == 1 else local_steps),
        ):
            if value is not None:
                raise InputError(
                    f"--{name} {value} says nothing at client level: noise is added once a round to all that a client sends. "
                    "Leave it out, or protect single examples with --unit example."
                )
    return size


def _drawn(examples: int | None, batch: int | None) -> tuple[int, int]:
    """The number of examples of a client, and how many of them it draws for a batch."""
    if examples is None or batch is None:
        raise InputError(
            "--unit example needs the number of --examples that a client has and the --batch that it draws. Give both."
        )
    if batch > examples:
        raise InputError(f"--batch {batch:,} exceeds --examples {examples:,}, all that a client has.")
    return examples, batch


def _most_rounds(clients: int, cohort: int, rounds: int, seed: int, given: int | None) -> tuple[int, str]:
    """The largest number of rounds in which any one client takes part, and how this is known."""
    if given is not None:
        return given, f"no client takes part in more than {given:,} of {rounds:,} rounds"
    if cohort == clients:
        return rounds, f"every client takes part in all {rounds:,} rounds"
    mean = f"{rounds * cohort / clients:,.4g} of {rounds:,} rounds on average"
    if rounds * cohort > _DRAWS:
        from scipy.stats import binom

        bound = min(rounds, int(binom.isf(1e-3 / clients, rounds, cohort / clients)))
        return bound, f"a client takes part in {mean}, and none in more than {bound:,} with probability 0.999"
    from sketchfed import PublicSeed
    from sketchfed.algorithms import most_participations

    most = most_participations(PublicSeed(seed), rounds=rounds, population=clients, count=cohort)
    return most, f"a client takes part in {mean}, one of them in {most:,} (seed {seed})"


def _claim(unit: "Unit", adjacency: str | None, otherwise: str, observer: str, delta: float) -> "Claim":
    from sketchfed.privacy.claims import Adjacency, Claim, Observer

    chosen = cast("Adjacency", otherwise if adjacency is None else adjacency)
    return Claim(unit=unit, adjacency=chosen, observer=cast("Observer", observer), delta=delta)


def _client_groups(
    delta: float, adjacency: str | None, clients: int, cohort: int, rounds: int, most: int, how: str
) -> list[_Group]:
    seen = _Group(  # nobody is there or not without being seen, so add-remove is zero-out here
        title=f"Cohorts that everybody sees: {how}",
        mean=(
            f"On the mean of {cohort:,} clients whose shares of the noise secure sums add up; it is √{cohort:,} times that "
            "where each client adds all of it."
        ),
        claim=_claim("client", None if adjacency == "add-remove" else adjacency, "zero-out", "server", delta),
        releases=most,
        sampling=1.0,
    )
    if cohort == clients:
        return [seen]
    hidden = _Group(
        title=f"Cohorts that the server hides: a client is in each of {rounds:,} rounds with chance {cohort / clients:.4g}",
        mean=f"On the mean of the {cohort:,} clients that are expected, to which the server adds it.",
        claim=_claim("client", adjacency, "add-remove", "public", delta),
        releases=rounds,
        sampling=cohort / clients,
    )
    return [seen, hidden]


def _example_groups(
    delta: float, adjacency: str | None, examples: int, batch: int, local_steps: int, most: int, how: str
) -> list[_Group]:
    steps = f"{how}, {local_steps:,} step{'s' if local_steps > 1 else ''} each"
    claim = _claim("example", adjacency, "add-remove", "server", delta)
    mean = f"On the mean of the {batch:,} examples that a client's batch has, or is expected to have."
    seen = _Group(
        title=f"All examples in every step, or any batches that the observer can follow: {steps}",
        mean=mean,
        claim=claim,
        releases=most * local_steps,
        sampling=1.0,
    )
    if batch == examples:
        return [seen]
    hidden = _Group(
        title=f"Batches that clients draw in secret, each example with probability {batch / examples:.4g}: {steps}",
        mean=mean,
        claim=claim,
        releases=most * local_steps,
        sampling=batch / examples,
    )
    if local_steps > 1:
        return [seen, hidden]
    rounds = -(-examples // batch)
    passes = _Group(  # how many examples there are says how passes are cut, so they are there or not for all to see
        title=f"Passes over the data, {rounds:,} rounds each, in which every example is in one batch: {how}",
        mean=mean,
        claim=_claim("example", None if adjacency == "add-remove" else adjacency, "zero-out", "server", delta),
        releases=-(-most // rounds),
        sampling=1.0,
    )
    return [seen, passes, hidden]


def _table(group: _Group, epsilon: float, rounds: int, clip: float, summed: int, dim: int | None) -> "tuple[Table, str]":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from sketchfed.privacy.formulas import compared
    from sketchfed.report.units import shown_epsilon

    rows = compared(group.claim, epsilon, rounds=rounds, releases=group.releases, sampling=group.sampling)
    tight = rows[-1].multiplier * clip / summed
    caption = f"ε = {epsilon:g} {group.claim.text}. Discrete noise takes hardly more. {group.mean}"
    if group.releases > 1:
        caption += "\nLemma H.4 is about one round, and stands here as if it were about all."
    if dim is not None:
        caption += (
            f"\nAt {dim:,} parameters the noise by PLD has length {tight * dim**0.5:.3g} on a mean of length {clip:g} at most, "
            "with an unbiased sketch as without one."
        )
    table = Table(box=SIMPLE_HEAD)
    for heading in ("method", "noise", "on the mean", "true ε", "× PLD"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        truth = shown_epsilon(row.epsilon)
        table.add_row(
            f"[bold]{row.method}" if row.method == "PLD" else row.method,
            f"{row.multiplier:.3f}",
            f"{row.multiplier * clip / summed:.3g}",
            truth if row.kept else f"[bold red]{truth} not kept",
            f"{row.against_tight:.2f}",
        )
    return table, caption
