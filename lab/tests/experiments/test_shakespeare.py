"""Text that is split without leaks, a GPT that does not look ahead, and tables that say what was measured."""

import gzip
import math
from dataclasses import replace

import pytest
import torch

import sketchfed
from sketchfed.errors import InputError
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments import shakespeare as experiment
from sketchfed_lab.experiments import shakespeare_report as report
from sketchfed_lab.experiments.shakespeare import ARMS, arm, tuned
from sketchfed_lab.experiments.shakespeare_task import CONTEXT, counted, each_position, gpt, speakers

SETTINGS = make_settings(experiment, recorded_settings("shakespeare"))
TEXTS = {"FIRST": 1_800, "SECOND": 2_400}


@pytest.fixture
def plays(tmp_path, monkeypatch):
    """Two speakers, each with a text in which any eight characters in a row occur once."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    spoken = {}
    for offset, (name, length) in enumerate(TEXTS.items()):
        words = (f"{letters[offset]}{letters[at // 676]}{letters[at // 26 % 26]}{letters[at % 26]}" for at in range(length))
        spoken[name] = "".join(words)[:length]
    text = "\n\n".join(f"{name}:\n{words}" for name, words in spoken.items())
    (tmp_path / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("SKETCHFED_DATA", str(tmp_path))
    return spoken


def windows(x, y):
    """Rows as tuples of codes, with the character that follows."""
    return [(*row, following) for row, following in zip(x.tolist(), y.tolist(), strict=True)]


def pieces(rows):
    return {row[start : start + 8] for row in rows for start in range(len(row) - 7)}


@pytest.mark.parametrize("held", ["test", "validation"])
def test_no_held_out_text_is_trained_on_and_tuning_never_sees_the_test(plays, held):
    data = speakers(shortest=1_000, held=held)
    trained, tested = windows(data.x_train, data.y_train), windows(data.x_test, data.y_test)
    assert not pieces(trained) & pieces(tested)
    assert len(pieces(tested)) > 0.4 * sum(TEXTS.values()) / 10
    final = speakers(shortest=1_000)
    test = pieces(windows(final.x_test, final.y_test))
    assert (held == "test") == bool(test & pieces(tested))
    assert not test & pieces(trained)


def test_every_speaker_is_a_client_and_held_out_characters_are_guessed_once(plays):
    data = speakers(shortest=1_000)
    assert data.groups.bincount().tolist() == [round(0.9 * length) - CONTEXT for length in TEXTS.values()]
    targets = [row[1:] for row in windows(data.x_test, data.y_test)]
    found = [target[start : start + 8] for target in targets for start in range(0, CONTEXT, 8)]
    assert len(set(found)) == len(found)


def test_what_is_held_out_has_a_name(plays):
    with pytest.raises(InputError, match="held must be one of test, validation"):
        speakers(shortest=1_000, held="training")


def test_the_model_does_not_look_ahead():
    torch.manual_seed(1)
    model = gpt(shape=(CONTEXT,), outputs=65).eval()
    x = torch.randint(65, (3, CONTEXT)).float()
    changed = x.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 65
    before, after = model(x), model(changed)
    assert torch.allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert not torch.allclose(before[:, 40:], after[:, 40:], atol=1e-2)


def test_the_loss_is_that_of_every_position():
    """A model that scores the character after each one in the alphabet highest is right on the alphabet, at all positions."""

    class Next(torch.nn.Module):
        def forward(self, x):
            return 100.0 * torch.nn.functional.one_hot((x.long() + 1) % 65, 65).float()

    x = torch.arange(CONTEXT).float().expand(2, -1)
    y = torch.full((2,), 64)
    assert float(each_position(Next(), (x, y))) < 1e-6
    wrong = x.clone()
    wrong[:, 10] = 0.0  # two of 64 guesses are wrong now, by 100
    assert float(each_position(Next(), (wrong, y))) == pytest.approx(200 / 64)


def test_counts_are_of_the_training_text_alone(plays):
    data = speakers(shortest=1_000)
    following = data.y_train.tolist()
    shares = {code: (1 + following.count(code)) / (65 + len(following)) for code in range(65)}
    targets = [code for row in windows(data.x_test, data.y_test) for code in row[1:]]
    alone = math.exp(-sum(math.log(shares[code]) for code in targets) / len(targets))
    assert counted(data, before=0) == pytest.approx(alone)
    pairs = list(zip(data.x_train[:, -1].tolist(), following, strict=True))
    first, second = pairs[7]
    share = (1 + pairs.count((first, second))) / (65 + sum(pair[0] == first for pair in pairs))
    one = replace(data, x_test=data.x_train[7:8], y_test=data.y_train[7:8])
    one = replace(one, x_test=one.x_test[:, -1:].expand(1, CONTEXT).clone(), y_test=one.y_test)
    repeated = (1 + pairs.count((first, first))) / (65 + sum(pair[0] == first for pair in pairs))
    wanted = math.exp(-(63 * math.log(repeated) + math.log(share)) / 64)
    assert counted(one, before=1) == pytest.approx(wanted)


def test_arms_differ_in_what_is_sent_only():
    made = {name: dict(arm(SETTINGS, name, (0.1, 1.0), seed=3, rounds=2).tables) for name in ARMS}
    for tables in made.values():
        tables.pop("sketch", None)
        tables["algorithm"] = {key: value for key, value in tables["algorithm"].items() if key != "name"}
    assert all(tables == made["dense"] for tables in made.values())


def test_tuning_is_by_the_held_out_loss_of_each_arm(monkeypatch, tmp_path):
    seen = []

    def fake(arms, path, **_):
        seen.extend(arms)
        rows = []
        for made in arms:
            distance = abs(math.log2(made.key["local_rate"] / 0.008)) + abs(math.log2(made.key["global_rate"] / 0.5))
            rows.append({"key": dict(made.key), "diverged": distance > 2.5, "curve": [[20, distance, None, 1, 1, 1]]})
        return rows

    monkeypatch.setattr(experiment, "run_arms", fake)
    best = tuned(replace(SETTINGS, tries=20), tmp_path / "tuning.jsonl")
    assert best == dict.fromkeys(SETTINGS.arms, (0.008, 0.5))
    assert {made.tables["data"]["held"] for made in seen} == {"validation"}
    assert {made.key["seed"] for made in seen}.isdisjoint(SETTINGS.seeds)


def row(name, seed, losses, sent):
    key = {"arm": name, "local_rate": 0.1, "global_rate": 1.0, "seed": seed, "rounds": 4}
    curve = [[2 * at, loss, None, 10 * at * sent, 20 * at * sent, at * sent] for at, loss in enumerate(losses, start=1)]
    return {"key": key, "diverged": False, "curve": curve, "seconds": 1.0}


def test_the_table_has_perplexities_at_budgets_and_at_the_end_with_their_intervals(tmp_path):
    rows = [row("dense", seed, [2.0, 1.0 + 0.01 * seed], 1000) for seed in (1, 2, 3)]
    rows += [row("1/10", seed, [2.0, 1.5], 100) for seed in (1, 2, 3)]
    report.write(rows, tmp_path, clients=5, budgets=[500, 2000], counts={"characters alone": 25.0})
    table = (tmp_path / "table.md").read_text().splitlines()
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table]
    dense, tenth, counts = lines[2], lines[3], lines[4]
    # Student's t with two degrees of freedom: 4.303 deviations of a mean of three, e^1.02 · 0.01 · 4.303 / √3
    assert dense[3:] == ["4.00 kB", "", "8.00 kB", "2.77 ± 0.07", "no score yet", "7.39 ± 0.00"]
    assert tenth[3:] == ["400 B", "10×", "800 B", "4.48 ± 0.00", "4.48 ± 0.00 (the end)", "4.48 ± 0.00 (the end)"]
    assert counts[0] == "counts: characters alone"
    assert counts[6] == "25.00"
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


def test_a_run_learns_something_and_sends_what_its_sketch_says(plays):
    small = replace(SETTINGS, shortest=1_000, clients=2, participants=2, local_steps=4, evaluate_every=1)
    sent = {}
    for name in ("dense", "1/10"):
        case = arm(small, name, (0.01, 1.0), seed=1, rounds=2)
        lines = sketchfed.run(dict(case.tables) | {"engine": {"workers": 1}}).metrics
        assert lines[-1]["loss"] < math.log(65) - 0.5
        sent[name] = lines[-1]["uplink_bytes"]
    assert sent["dense"] / sent["1/10"] == pytest.approx(10, rel=0.02)
