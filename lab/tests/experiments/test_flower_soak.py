import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr")

from sketchfed_lab.experiments import flower_soak as soak
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.flower_soak_report import report, trend


def test_what_grows_is_told_from_what_wavers():
    """A leak of a tenth over the run, in noise of a hundredth, is found; the noise is the same in every run of this test."""
    noise = np.random.default_rng(0).normal(0, 1, 200)
    assert trend(list(100 + noise + np.linspace(0, 10, 200))).grows
    assert not trend(list(100 + noise)).grows
    assert not trend([100.0] * 200).grows
    assert not trend([50.0] * 20 + [100.0] * 180).grows, "it had to warm up"


def test_reasons_are_counted_by_client_and_all_else_is_kept():
    said = soak.Said()
    with said.listening():
        log = logging.getLogger("sketchfed")
        log.warning("round 3 goes on without client 1, 2: no reply came within 12 s.")
        log.warning("round 3 goes on without client 0: the packet is truncated: half of it")
        log.warning("round 3: client 3 lost what it held, and is sent what it needs")
    assert said.taken() == {
        "refused": {"silent": 2, "truncated": 1},
        "said": ["round 3: client 3 lost what it held, and is sent what it needs"],
    }
    assert said.taken() == {"refused": {}, "said": []}


def test_an_arm_that_is_there_is_not_run_again(tmp_path, monkeypatch):
    settings = make_settings(soak, recorded_settings("flower-soak") | {"rounds": 6, "secure_rounds": 6})
    begun = []

    def soaked(arm, settings, work, tell):
        begun.append(arm)
        rows = [*rounds(arm, settings.rounds), {"arm": arm, "finished": True, **WHOLE}]
        for row in rows:
            tell(row)
        return rows

    monkeypatch.setattr(soak, "_soaked", soaked)
    soak.run(settings, tmp_path)
    path = tmp_path / "results.jsonl"
    cut = [line for line in path.read_text().splitlines() if json.loads(line)["arm"] == "open" or "round" in line]
    path.write_text("\n".join(cut[:-1]) + "\n")
    soak.run(settings, tmp_path)
    assert begun == ["open", "secure", "secure"]
    assert len(path.read_text().splitlines()) == 14
    assert "| rounds, each counted once | 6 | 6 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.svg").exists()


def test_the_table_says_what_was_left(tmp_path):
    report([*rounds("open", 40), {"arm": "open", "finished": True, **WHOLE, "processes_left": 3}], tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| processes left | 3 |" in table
    assert "| memory of server, MiB | 300, steady: +0.0 ± 0.0 |" in table


WHOLE = {
    "accuracy": 0.9,
    "local_accuracy": 0.9,
    "messages": 24,
    "faults": {"raise": 2},
    "resumed": {"StoppedError": 1},
    "rounds_counted_once": True,
    "rounds": 6,
    "processes_left": 0,
    "descriptors_left": 0,
    "files_left_in_tmp": 0,
}


def rounds(arm, count):
    sizes = {"server": 300.0, "superlink": 100.0, "supernodes": 400.0, "workers": 300.0}
    return [
        {
            "arm": arm,
            "round": number,
            "seconds": 4.0,
            "participants": 4,
            "refused": {},
            "killed": {},
            "memory": sizes,
            "descriptors": sizes,
            "processes": 10,
        }
        for number in range(1, count + 1)
    ]
