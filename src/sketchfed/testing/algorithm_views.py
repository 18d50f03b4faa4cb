"""What an audit is told about an algorithm: the truth, or that nobody has said."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import pytest
import scipy.stats
import torch
from torch import Tensor

from sketchfed import vectors
from sketchfed.algorithms import Algorithm
from sketchfed.attacks.knowledge import is_known
from sketchfed.attacks.public import Public
from sketchfed.attacks.view import Update, View
from sketchfed.errors import InputError
from sketchfed.rounds import Exchange, Recorder
from sketchfed.testing.algorithm_cases import AlgorithmSuite, clients_data, module, started
from sketchfed.testing.algorithm_faults import ROUNDS, FaultyRun
from sketchfed.testing.federation import Tap, advanced
from sketchfed.testing.suite import only
from sketchfed.training import Examples

ROUNDING = 1e-4
FALSE_ALARM = 1e-6


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Everything that passed in a few rounds, and what everybody knows."""

    public: Public
    exchanges: Sequence[Exchange]

    def view(self, members: tuple[int, ...] = ()) -> View:
        """What the server sees, or what these clients see."""
        passed = [each for each in self.exchanges if not members or each.client in members]
        own = {client: clients_data()[client] for client in members}
        return View(role="client" if members else "server", public=self.public, exchanges=passed, members=members, own=own)

    def compared(self, view: View) -> Iterator[tuple[Update, Tensor, Tensor]]:
        """Each update of a view, what the true examples would look like, and what was seen."""
        for update in list(view.updates()):
            parts = [self._used(update.round, client) for client in update.clients]
            x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
            yield update, update.observation.seen(x, y).detach(), update.observation.values

    def _used(self, index: int, client: int) -> Examples:
        data, used = clients_data()[client], self.public.used(index, client)
        assert used is not None
        return Examples(data.x[list(used)], data.y[list(used)])


def recorded(algorithm: Algorithm, rounds: int = 3) -> Recorded:
    """A few rounds of the tiny federation."""
    server, exchanges = started(algorithm), list[Exchange]()
    assert isinstance(server.engine, Tap)
    server.engine.inner = Recorder(server.engine.inner, round=lambda: server.round, tell=exchanges.extend)
    start = server.state.replica if algorithm.shows_weights else None
    advanced(server, rounds)
    empty = deepcopy(module())
    with torch.no_grad():
        for parameter in vectors.trainable(empty).values():
            parameter.zero_()
    public = Public(
        protection=server.protection.unseeded(),
        module=empty,
        loss="cross_entropy",
        seed=server.seed,
        shape=(6,),
        sizes=tuple(len(each.x) for each in clients_data()),
        start=start,
    )
    return Recorded(public=public, exchanges=exchanges)


def check_views(suite: AlgorithmSuite, algorithm: Algorithm, run: FaultyRun) -> None:
    """Views of a run with faults show nothing of clients that failed, and what they show is the truth up to the noise.

    Noise is compared if each client's whole change is protected, because only then everybody knows whose examples are behind
    an update: Σ(noise/deviation)² is χ² of as many degrees as there are numbers. False alarm below 1e-6 a role.
    """
    seen = Recorded(public=run.public, exchanges=run.exchanges)
    if not is_known(algorithm):
        _check_unknown(seen, algorithm)
        return
    secure = any(each.stage == "keys" for each in run.exchanges)
    for members in ((), (0,)):
        view = seen.view(members)
        told = [(update.round, update.clients) for update in view.updates()]
        if not members:
            each = [(index, tuple(run.counted(index))) for index in range(ROUNDS)]
            alone = [(index, (client,)) for index, clients in each for client in clients]
            assert told == [one for one in (each if secure else alone) if run.public.trains(one[0])]
        protection = run.public.protection
        if protection.batches is None and not protection.hidden and suite.looked_through(algorithm):
            # A client does not learn that another one failed, except in a secure sum.
            _check_noise([one for one in seen.compared(view) if secure or not members or one[0].round not in run.failed])


def _check_noise(compared: list[tuple[Update, Tensor, Tensor]]) -> None:
    total, count = 0.0, 0
    for update, seen, values in compared:
        if not update.noise:
            distance = float((seen - values).norm() / values.norm().clamp(min=1e-12))
            assert distance < ROUNDING, f"round {update.round}, clients {update.clients}"
            continue
        total += float(((seen - values) / update.noise).double().square().sum())
        count += len(values)
    if count:
        low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], count)
        assert low <= total <= high, f"the deviation is {(total / count) ** 0.5:.3g} times what views say"


def _check_unknown(seen: Recorded, algorithm: Algorithm) -> None:
    for members in ((), (0,)):
        with pytest.raises(InputError, match=f"nobody has said what the messages of algorithm '{algorithm.name}' reveal"):
            seen.view(members).updates()


class AlgorithmViews(AlgorithmSuite):
    """Attacks see what was sent."""

    @only(lambda suite, algorithm: is_known(algorithm) and suite.looked_through(algorithm))
    def test_a_view_shows_what_the_examples_would_look_like(self, algorithm: Algorithm) -> None:
        """With an entry in `sketchfed.attacks.knowledge`, what an audit reads from messages is what the clients' examples give.

        For each reply as the server sees it, and for the mean of the others as a client sees it, if it sees one.
        """
        run = recorded(algorithm)
        server = list(run.compared(run.view()))
        assert [update.clients for update, _, _ in server], "the server sees every reply"
        for update, seen, values in [*server, *run.compared(run.view((0,)))]:
            distance = float((seen - values).norm() / values.norm().clamp(min=1e-12))
            assert distance < ROUNDING, f"round {update.round}, clients {update.clients}"

    @only(lambda suite, algorithm: not is_known(algorithm))
    def test_without_an_entry_nothing_is_claimed_about_messages(self, algorithm: Algorithm) -> None:
        """Without an entry of its own there, attacks on updates are not applicable. Subclasses do not inherit an entry."""
        _check_unknown(recorded(algorithm), algorithm)
