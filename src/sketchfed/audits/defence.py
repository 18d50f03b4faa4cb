"""Audits one defence: attacks its recorded run and collects all findings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sketchfed.attacks import ATTACKS
from sketchfed.attacks.base import Attack
from sketchfed.attacks.inference import AlignmentAttack, MembershipAttack, PropertyAttack
from sketchfed.attacks.reconstruction import GradientMatching, JointMatching, Reconstruction
from sketchfed.attacks.steps import AllMessages, StepAttack
from sketchfed.attacks.view import View
from sketchfed.audits.canaries import Canaries
from sketchfed.audits.evidence import Evidence
from sketchfed.audits.findings import DefenceRecord, Finding
from sketchfed.audits.judging import judged_changes, judged_examples, judged_steps
from sketchfed.audits.judging_inference import judged_canaries, judged_members, judged_property
from sketchfed.audits.outside import Outside, Property
from sketchfed.errors import SketchfedError
from sketchfed.rounds.network import receiver
from sketchfed.rounds.participant import MOST_UPDATES
from sketchfed.seeds import PublicSeed
from sketchfed.vectors import Layout
from sketchfed.wire import Bits, split, unpack

_SINGLE = ("server", "network", "neighbour")
"""The roles that see single clients' updates."""
OnStage = Callable[[str, float], None]
"""Called with what is being done, and the share of the work that is done."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard attacks try."""

    victims: int = 6
    """The number of updates whose examples are reconstructed. Half as many, if several updates or clients are combined."""
    iterations: int = 250
    """The number of iterations of gradient matching. L-BFGS needs fewer, so for it this is a limit."""
    judged: int = 40
    """The number of updates whose property is guessed. Half as many for updates of several clients."""
    member_rounds: int = 20
    """The number of rounds whose updates are searched for members. The first ones, because gradients are longest there."""
    canaries: int = 60
    """The number of canaries, of which half are put into the data. With 0, the data stays as it is."""
    shadows: int = 200
    """The number of updates that the adversary simulates for each round to learn from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Everything that the attacks on one recorded run need."""

    recorded: Evidence
    outside: Outside
    wanted: Property
    effort: Effort
    seed: PublicSeed
    canaries: Canaries | None = None
    attacks: Sequence[str] = ()
    """The names of the attacks to try. All attacks, if empty."""

    def findings(self, on_stage: OnStage | None = None) -> Iterator[Finding]:
        """Yield the findings of every attack from every view to which it applies.

        Whoever reads the messages sees what the server sees, so the same attack is not repeated there.
        """
        roles = self.recorded.roles
        kinds = chosen_attacks(self.attacks)
        jobs = [(role, kind()) for role in roles for kind in kinds if self._applies(role, kind)]
        found: dict[str, Finding] = {}
        views = {role: self.recorded.view(role) for role in roles}
        for number, (role, attack) in enumerate(jobs):
            if on_stage is not None:
                on_stage(f"{role}: {attack.name}", number / len(jobs))
            if role == "network" and attack.name in found and self._same_bytes(attack):
                for name in (attack.name, f"canaries, {attack.name}"):
                    if name in found:
                        yield replace(found[name], role=role, pictures=[])
                continue
            for finding in self._tried(attack, views[role]):
                if role.endswith("server"):
                    found[finding.attack] = finding
                yield finding

    def _applies(self, role: str, kind: type[Attack]) -> bool:
        if issubclass(kind, StepAttack):  # a server took them itself, and on a graph nobody takes any
            return not role.endswith("server") and role != "neighbour"
        return role == "neighbour" or not issubclass(kind, AllMessages)

    def _same_bytes(self, attack: Attack) -> bool:
        return not isinstance(attack, MembershipAttack) or isinstance(attack, AlignmentAttack)

    def _tried(self, attack: Attack, view: View) -> Iterator[Finding]:
        seed = self.seed.child(f"{view.role}, {attack.name}".replace(" ", "-"))
        if isinstance(attack, Reconstruction):
            several = isinstance(attack, JointMatching) or view.role not in _SINGLE
            victims = max(1, self.effort.victims // 2) if several else self.effort.victims
            yield judged_examples(self._equipped(attack), view, self.recorded, self.outside, victims=victims, seed=seed)
        elif isinstance(attack, StepAttack):
            yield judged_steps(attack, view, self.recorded)
        elif isinstance(attack, AllMessages):
            yield judged_changes(attack, view, self.recorded)
        elif isinstance(attack, PropertyAttack):
            taught = replace(attack, forest=replace(attack.forest, shadows=self.effort.shadows, trees=60))
            yield judged_property(
                taught, view, self.recorded, self.outside, self.wanted, rounds=self._judged_rounds(view), seed=seed
            )
        elif isinstance(attack, MembershipAttack):
            yield judged_members(attack, view, self.recorded, self.outside, rounds=self.effort.member_rounds)
            if self.canaries is not None:
                delta = 0.0 if self.recorded.config.privacy is None else self.recorded.config.privacy.delta
                yield judged_canaries(attack, view, self.canaries, self.outside, delta=delta)

    def _equipped(self, attack: Reconstruction) -> Reconstruction:
        """The attack with the chosen number of iterations, and with the range of inputs."""
        if not isinstance(attack, GradientMatching):
            return attack
        matching = replace(attack.matching, low=self.outside.low, high=self.outside.high)
        wanted = self.effort.iterations
        most = wanted if matching.optimiser == "adam" else min(wanted, matching.iterations)
        return replace(attack, matching=replace(matching, iterations=most))

    def _judged_rounds(self, view: View) -> int:
        """The number of rounds that have as many updates as are to be judged."""
        if view.role == "neighbour":
            return max(1, self.effort.judged // max(1, sum(told.round == 0 for told in view.told)))
        if view.role not in _SINGLE:
            return max(1, self.effort.judged // 2)
        return max(1, self.effort.judged // view.public.algorithm.planned(len(view.public.sizes)))


def chosen_attacks(names: Sequence[str]) -> list[type[Attack]]:
    """Return the attacks with these names, or all if there are none."""
    return [ATTACKS[name] for name in names or ATTACKS]


def defence_record(name: str, bench: Bench, *, asked: str, on_stage: OnStage | None = None) -> DefenceRecord:
    """Return the record of one defence, with all findings."""
    recorded = bench.recorded
    last = recorded.metrics[-1] if recorded.metrics else {}
    scored = next((line for line in reversed(recorded.metrics) if line["loss"] is not None), {"accuracy": None, "loss": None})
    noisy = recorded.public.protection.budget is not None
    return DefenceRecord(
        name=name,
        label=recorded.config.label,
        asked=asked,
        config=recorded.config.to_toml(),
        accuracy=scored["accuracy"],
        loss=scored["loss"],
        rounds=len(recorded.metrics),
        uplink_bytes=last.get("uplink_bytes", 0),
        downlink_bytes=last.get("downlink_bytes", 0),
        numbers=_numbers(recorded),
        dim=Layout.of(recorded.workload.module).dim,
        epsilon=last.get("epsilon") if noisy else None,
        claim=recorded.claim,
        findings=list(bench.findings(on_stage)),
    )


def _numbers(recorded: Evidence) -> int:
    """The size of a reply's values, without their positions."""
    for exchange in recorded.exchanges:
        between = receiver(exchange) is not None
        if exchange.reply is None or not (between or exchange.stage in ("train", "masked")):
            continue
        try:
            arrays = unpack(split(exchange.reply, most=MOST_UPDATES)[-1] if between else exchange.reply).arrays
        except SketchfedError:
            continue
        sent = [arrays["values"]] if "values" in arrays else list(arrays.values())
        return max((array.values.numel() if isinstance(array, Bits) else array.numel() for array in sent), default=0)
    return 0
