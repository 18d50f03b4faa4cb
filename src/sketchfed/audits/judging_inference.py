"""Tries attacks that answer questions about examples on examples for which the auditor knows the answer."""

from itertools import islice

import numpy as np
import torch
from torch import Tensor

from sketchfed.attacks.base import Attack
from sketchfed.attacks.inference import AlignmentAttack, MembershipAttack, PropertyAttack
from sketchfed.attacks.membership import by_alignment
from sketchfed.attacks.reconstruction import OnStep
from sketchfed.attacks.scores import auc, auc_interval, true_positive_rate
from sketchfed.attacks.view import Update, View
from sketchfed.audits.canaries import Canaries
from sketchfed.audits.evidence import Evidence
from sketchfed.audits.findings import Finding
from sketchfed.audits.judging import not_applicable
from sketchfed.audits.outside import Outside, Property
from sketchfed.errors import InputError
from sketchfed.privacy.audit import audited
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples

CANDIDATES = 100
"""The number of members, and of others, among which a membership attack chooses."""
_KNOWN = 40
_LEAST = 4


def judged_property(
    attack: PropertyAttack,
    view: View,
    recorded: Evidence,
    outside: Outside,
    wanted: Property,
    *,
    rounds: int,
    seed: PublicSeed,
    on_step: OnStep | None = None,
) -> Finding:
    """Judge whether updates with an example that has the property score higher than others."""
    try:
        scores = attack.scores(view, outside.known, wanted.has(outside.known.x), rounds=rounds, seed=seed, on_step=on_step)
        truths = [_contains(update, recorded, wanted) for update, _ in scores]
    except InputError as error:
        return not_applicable(attack, view, str(error))
    having = [score for (_, score), truth in zip(scores, truths, strict=True) if truth]
    lacking = [score for (_, score), truth in zip(scores, truths, strict=True) if truth is False]
    return _area(attack, view, having, lacking, f"the property: {wanted.name}.")


def judged_members(
    attack: MembershipAttack,
    view: View,
    recorded: Evidence,
    outside: Outside,
    *,
    rounds: int,
    on_step: OnStep | None = None,
) -> Finding:
    """Judge whether examples that were trained on score higher than others."""
    try:
        members = _members(recorded, rounds if isinstance(attack, AlignmentAttack) else recorded.config.algorithm.rounds)
        count = min(CANDIDATES, len(members.x), len(outside.others.x))
        candidates = Examples(
            torch.cat([members.x[:count], outside.others.x[:count]]), torch.cat([members.y[:count], outside.others.y[:count]])
        )
        scores = attack.scores(view, candidates, rounds=rounds, on_step=on_step)
    except InputError as error:
        return not_applicable(attack, view, str(error))
    return _area(attack, view, scores[:count].tolist(), scores[count:].tolist(), "")


def judged_canaries(
    attack: MembershipAttack,
    view: View,
    canaries: Canaries,
    outside: Outside,
    *,
    delta: float,
    on_step: OnStep | None = None,
) -> Finding:
    """Judge whether canaries that are present score higher than others, and which ε this refutes, from this one run."""
    try:
        if isinstance(attack, AlignmentAttack):
            scores = _aligned(view, canaries, outside, on_step)
        else:
            scores = attack.scores(view, canaries.examples, rounds=0)
    except InputError as error:
        return not_applicable(attack, view, str(error), name=f"canaries, {attack.name}")
    finding = _area(
        attack, view, scores[canaries.included].tolist(), scores[~canaries.included].tolist(), "",
        name=f"canaries, {attack.name}",
    )  # fmt: skip
    guesses = 2 * (len(canaries.included) // 4)
    bound = audited(scores.numpy(), canaries.included, delta=delta, guesses=guesses)
    finding.details["epsilon_lower"] = bound.lower
    return finding


def _aligned(view: View, canaries: Canaries, outside: Outside, on_step: OnStep | None) -> Tensor:
    """Score canaries by updates of the client that may hold them, or sums with it, next to examples that nobody holds."""
    updates = view.updates()
    if not updates:
        raise InputError(f"the {view.role} sees nothing that is a function of one round's changes alone.")
    pool = Examples(
        torch.cat([canaries.examples.x, outside.known.x[:_KNOWN]]), torch.cat([canaries.examples.y, outside.known.y[:_KNOWN]])
    )
    clients = torch.cat([canaries.clients, torch.full((len(pool.x) - len(canaries.clients),), -1)])
    possible = [
        torch.isin(clients, torch.tensor(update.clients)) if update.clients else torch.ones(len(clients), dtype=torch.bool)
        for update in updates
    ]
    found = by_alignment([update.observation for update in updates], pool, possible=possible, largest=True, on_step=on_step)
    return found[: len(canaries.clients)].float()


def _members(recorded: Evidence, rounds: int) -> Examples:
    """Return examples that were used in the first `rounds` rounds. They are spread over the rounds, and each occurs once."""
    found: dict[bytes, tuple[Tensor, Tensor]] = {}
    training = (index for index in range(recorded.config.algorithm.rounds) if recorded.public.trains(index))
    for index in islice(training, rounds):
        clients = recorded.replied(index)
        if not clients:
            continue
        used = recorded.behind(index, clients)
        for x, y in zip(used.x, used.y, strict=True):
            found.setdefault(x.numpy().tobytes(), (x, y))
        if len(found) >= 8 * CANDIDATES:
            break
    if not found:
        raise InputError("no example was used in the rounds that are looked at.")
    pairs = list(found.values())
    chosen = np.linspace(0, len(pairs) - 1, min(CANDIDATES, len(pairs))).round().astype(int)
    return Examples(torch.stack([pairs[i][0] for i in chosen]), torch.stack([pairs[i][1] for i in chosen]))


def _contains(update: Update, recorded: Evidence, wanted: Property) -> bool | None:
    """Whether an update's examples include one with the property. None if there are no examples."""
    truth = recorded.behind(update.round, update.clients or recorded.replied(update.round))
    return bool(wanted.has(truth.x).any()) if len(truth.x) else None


def _area(
    attack: Attack, view: View, positive: list[float], negative: list[float], reason: str, *, name: str | None = None
) -> Finding:
    if min(len(positive), len(negative)) < _LEAST:
        return not_applicable(
            attack,
            view,
            f"{len(positive)} of what is judged are of the one and {len(negative)} of the other kind; {_LEAST} of each are "
            "needed. Use more rounds or more victims.",
            name=name,
        )
    low, high = auc_interval(positive, negative)
    return Finding(
        role=view.role,
        attack=name or attack.name,
        goal=attack.goal,
        verdict="leaks" if low > 0.5 else "nothing found",
        reason=reason,
        victims=len(positive) + len(negative),
        measure="auc",
        score=auc(positive, negative),
        low=low,
        high=high,
        chance=0.5,
        details={"true_positive_rate": true_positive_rate(positive, negative, 0.05)},
    )
