"""Audits from start to end, on the smallest federation that has something to find."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import sketchfed
from sketchfed import PublicSeed
from sketchfed.attacks import Guess, Reconstruction
from sketchfed.attacks.reconstruction import DeepLeakage, GradientMatching, JointMatching
from sketchfed.audits import Effort, audit, audited, read_record
from sketchfed.audits.defence import Bench
from sketchfed.audits.defences import UNDEFENDED, embedded, is_undefended, undefended
from sketchfed.audits.running import PAGE, AuditTerms, subjects_of
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError

EFFORT = Effort(victims=1, iterations=1, judged=3, member_rounds=3, canaries=12, shadows=20)
WORK = {"rounds": 6, "participation": 1.0, "local_steps": 1, "batch": 1, "screening": 0.0}
DATA = {"name": "digits", "clients": 3}
MODEL = {"name": "mlp", "hidden": [16]}


def tables(**own):
    return {"data": DATA, "model": MODEL, "engine": {"workers": 1}, **own, "algorithm": WORK | own.get("algorithm", {})}


SKETCHED = tables(algorithm={"name": "iterative"}, sketch={"ratio": 0.2})


def verdicts(record, name):
    (defence,) = (each for each in record.defences if each.name == name)
    return {(finding.role, finding.attack): finding for finding in defence.findings}


def test_an_audit_tries_every_attack_from_every_view_and_shows_what_the_undefended_way_gives_away():
    record = audit(defences={"sketched": SKETCHED}, effort=replace(EFFORT, victims=2))
    assert [defence.name for defence in record.defences] == [UNDEFENDED, "sketched"]
    found = verdicts(record, UNDEFENDED)
    assert {role for role, _ in found} == {"server", "network", "client", "colluders"}
    first_layer = found["server", "first layer"]
    assert first_layer.verdict == "leaks"
    assert first_layer.score > 60
    assert found["network", "first layer"].score == first_layer.score
    told = found["client", "as sent"]
    assert (told.verdict, round(told.score, 3)) == ("not applicable", 1.0)
    assert "by design" in told.reason
    assert verdicts(record, "sketched")["server", "first layer"].verdict == "not applicable"
    assert all(0 <= finding.details.get("recovered", 0) <= 1 for finding in found.values())
    assert all(defence.epsilon is None and defence.claim == "nothing is claimed" for defence in record.defences)


def test_a_loss_of_a_batch_is_attacked_like_the_loss_that_it_is():
    own = tables(training={"batch_loss": "named_loops:batch_loss"}, algorithm={"name": "iterative"}, sketch={"ratio": 0.2})
    record = audit(defences={"sketched": SKETCHED, "by batch": own}, effort=EFFORT)
    named, by_batch = verdicts(record, "sketched"), verdicts(record, "by batch")
    assert named.keys() == by_batch.keys()
    judged = {key: finding.score for key, finding in named.items() if finding.verdict != "not applicable"}
    assert judged
    assert {key: by_batch[key].score for key in judged} == pytest.approx(judged, abs=0.05, rel=0.05)


def test_steps_of_another_optimiser_are_not_audited_as_if_they_were_plain_ones():
    with pytest.raises(InputError, match="here the steps of plain SGD are followed"):
        audit(defences={"adam": tables(training={"optimiser": "adam"})}, effort=EFFORT)


@dataclass(frozen=True, kw_only=True)
class Grey(Reconstruction):
    """Says grey, whatever it sees."""

    name: ClassVar[str] = "grey"
    summary = "grey, whatever was sent"
    source = "here"

    def reconstruct(self, target, public, seed, on_step=None):
        return Guess(x=torch.full((target.count, *public.shape), 0.5), y=torch.zeros(target.count).long(), mismatch=1.0)


def test_attacks_can_be_chosen_and_be_ones_own(tmp_path):
    chosen = [f"{__name__}:Grey", "first layer"]
    record = audit(algorithm=tables(), effort=EFFORT, attacks=chosen, folder=tmp_path)
    found = verdicts(record, record.defences[0].name)
    assert {attack for _, attack in found} == {"grey", "first layer"}
    assert found["server", "first layer"].verdict == "leaks"
    assert found["server", "grey"].verdict != "leaks"
    assert read_record(tmp_path / "audit.json").attacks == chosen
    with pytest.raises(UnknownNameError, match=r"no attack named 'first'"):
        audit(attacks=["first"])


@pytest.mark.parametrize(("wanted", "adam", "lbfgs"), [(250, 250, 80), (5, 5, 5)])
def test_no_search_takes_more_iterations_than_are_wanted(wanted, adam, lbfgs):
    outside = SimpleNamespace(low=0.0, high=1.0)
    bench = Bench(recorded=None, outside=outside, wanted=None, effort=Effort(iterations=wanted), seed=PublicSeed(1))
    found = [bench._equipped(attack).matching.iterations for attack in (GradientMatching(), JointMatching(), DeepLeakage())]
    assert found == [adam, adam, lbfgs]


def test_what_an_audit_cannot_judge_is_no_attack():
    with pytest.raises(InputError, match=r"is not a subclass of .*Reconstruction or .*StepAttack or"):
        audit(attacks=["sketchfed.attacks.base:Attack"])


SUBJECTS = subjects_of({"sketched": load_config(SKETCHED)}, seed=3)
TERMS = AuditTerms(seed=3, effort=EFFORT)


@pytest.fixture(scope="module")
def uninterrupted():
    """What an audit in one process finds that nothing stops."""
    return audited(SUBJECTS, TERMS, processes=1)


@pytest.mark.slow
def test_two_processes_find_what_one_finds(uninterrupted, tmp_path):
    second = audited(SUBJECTS, TERMS, processes=2, folder=tmp_path / "audit")
    assert uninterrupted == second == read_record(tmp_path / "audit" / "audit.json")


def test_equal_seeds_give_equal_audits_and_others_do_not(uninterrupted):
    assert audited(SUBJECTS[:1], TERMS, processes=1).defences[0].findings == uninterrupted.defences[0].findings
    other = audited(SUBJECTS[:1], replace(TERMS, seed=4), processes=1)
    assert other.defences[0].findings != uninterrupted.defences[0].findings


def test_an_interrupted_audit_leaves_what_is_finished_and_goes_on_from_there(uninterrupted, tmp_path):
    asked = []

    def interrupt(name, what, share):
        asked.append(name)
        if name == "sketched":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(SUBJECTS, TERMS, processes=1, folder=tmp_path, on_stage=interrupt)
    left = read_record(tmp_path / "audit.json")
    assert [defence.name for defence in left.defences] == [UNDEFENDED]
    assert not left.finished
    assert "interrupted" in (tmp_path / PAGE).read_text()
    asked.clear()
    resumed = audited(SUBJECTS, TERMS, processes=1, folder=tmp_path, resume=True, on_stage=lambda name, *_: asked.append(name))
    assert set(asked) == {"sketched"}
    assert resumed == uninterrupted


def test_noise_and_secure_sums_are_audited_with_their_claim():
    noise = {"unit": "example", "epsilon": 8.0, "delta": 1e-4, "name": "discrete_gaussian"}
    config = tables(algorithm={"name": "iterative"}, sketch={"ratio": 0.2}, privacy=noise, secure={"survivors": 1.0})
    record = audit(defences={"noisy": config}, effort=EFFORT)
    noisy = record.defences[1]
    assert noisy.epsilon is not None
    assert 0 < noisy.epsilon <= 8
    assert "example level" in noisy.claim
    found = verdicts(record, "noisy")
    assert ("secure server", "matching") in found
    assert ("server", "matching") not in found
    assert found["secure server", "joint matching"].verdict == "not applicable"
    bounds = [finding.details["epsilon_lower"] for finding in noisy.findings if "epsilon_lower" in finding.details]
    assert bounds
    assert max(bounds) <= noisy.epsilon


def test_a_users_own_model_and_data_are_audited_from_python(tmp_path):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 2))

    def people(count):
        x = torch.rand(count, 9, generator=generator)
        return x, (x[:, 0] > x[:, 1]).long()

    record = sketchfed.audit(
        model,
        nn.functional.cross_entropy,
        [people(20) for _ in range(3)],
        test=people(80),
        algorithm={"algorithm": WORK | {"name": "iterative"}, "sketch": {"ratio": 0.5}},
        effort=EFFORT,
        folder=tmp_path / "own",
    )
    assert record.setting.startswith("own data · own model")
    found = verdicts(record, UNDEFENDED)["server", "first layer"]
    assert found.verdict == "leaks"
    assert not found.pictures
    assert "not images" in found.reason
    assert (tmp_path / "own" / PAGE).exists()
    shown = sketchfed.audit(
        model,
        None,
        [people(9)] * 2,
        test=people(60),
        algorithm={"algorithm": WORK},
        effort=EFFORT,
        attacks=["first layer"],
        image=(1, 3, 3),
    )
    assert verdicts(shown, "fedavg")["server", "first layer"].pictures


def test_a_model_without_second_derivatives_is_said_to_be_out_of_reach_of_matching_and_what_else_to_use():
    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer(x.detach().round())

    generator = torch.Generator().manual_seed(0)
    data = [(torch.rand(6, 64, generator=generator), torch.arange(6)) for _ in range(3)]
    test = (torch.rand(60, 64, generator=generator), torch.arange(60) % 10)
    record = audit(Rounded(), None, data, test=test, algorithm={"algorithm": WORK}, effort=EFFORT, attacks=["matching"])
    found = verdicts(record, "fedavg")["server", "matching"]
    assert found.verdict == "not applicable"
    assert "second derivative" in found.reason
    assert "analytic" in found.reason


def test_large_batches_are_said_to_be_too_much_to_look_for_with_the_worst_case_named():
    config = tables(algorithm={"local_steps": 1, "batch": 20})
    record = audit(defences={"plain": config}, effort=EFFORT, attacks=["matching"])
    found = verdicts(record, "plain")["server", "matching"]
    assert found.verdict == "not applicable"
    assert "20 examples or more" in found.reason
    assert "algorithm.batch = 1" in found.reason


@pytest.mark.parametrize("given", [{"model": nn.Linear(2, 2)}, {"data": [(torch.zeros(2, 2), torch.zeros(2))]}])
def test_model_data_and_test_belong_together(given):
    with pytest.raises(InputError, match="belong together"):
        audit(**given)


def test_configurations_on_other_data_are_not_compared():
    with pytest.raises(InputError, match="Audit them one by one"):
        subjects_of({"a": load_config(SKETCHED), "b": load_config(SKETCHED | {"model": {"name": "logistic"}})})


def test_the_undefended_way_has_the_same_work_and_is_recognised():
    config = load_config(SKETCHED)
    plain = undefended(config)
    assert is_undefended(plain)
    assert not is_undefended(config)
    assert plain.algorithm.work == config.algorithm.work
    assert [subject.name for subject in subjects_of({"mine": plain, "sketched": config})] == ["mine", "sketched"]
    assert not is_undefended(load_config(tables(codec={"name": "top_k", "ratio": 0.1})))


def test_the_embedded_audit_has_all_that_it_promises():
    configs = embedded(0)
    assert next(iter(configs)) == UNDEFENDED
    assert is_undefended(configs[UNDEFENDED])
    labels = " · ".join(config.label for config in configs.values())
    for part in ("fedavg", "top_k", "eden", "count", "srht 1/2", "srht 1/10", "srht 1/50", "dbcl", "gaussian", "secure sums"):
        assert part in labels
    assert len({config.algorithm.work for config in configs.values() if config.privacy is None}) == 1


@pytest.mark.slow
def test_sums_of_groups_are_audited_one_by_one():
    """Of nine clients in three groups, the server sees three sums a round, and each is attacked."""
    config = tables(
        data={"clients": 9}, algorithm={"name": "iterative"}, sketch={"ratio": 0.5}, secure={"groups": 3, "clip": 5.0}
    )
    record = audit(defences={"groups": config}, effort=EFFORT)
    found = verdicts(record, "groups")
    assert ("secure server", "matching") in found
    assert found["secure server", "matching"].verdict != "not applicable"
    assert ("server", "matching") not in found
