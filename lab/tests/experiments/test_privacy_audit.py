"""The one-run audit of everything that claims an ε, end to end: training, sketch, clip, noise, masks, and decoding."""

from dataclasses import replace

import pytest

from sketchfed_lab.experiments.privacy_audit import Settings, audited, pipelines, run

SETTINGS = Settings(
    canaries=1000, size=1024, dim=2048, rounds=2, epsilons=[2.0], shares=[1.0, 0.25], delta=1e-5, seeds=[0], processes=1
)
FEWER = replace(SETTINGS, canaries=500, size=512, dim=1024)
"""For pipelines in which every canary is a client, which costs more than an example."""


@pytest.mark.parametrize("name", pipelines(1))
def test_the_proven_epsilon_stays_below_the_claim_and_too_little_noise_is_caught(name):
    """An honest claim is refuted with probability 5 % at most, by the audit's own confidence; here the noise is fixed."""
    settings = FEWER if pipelines(1)[name].clients is None else SETTINGS
    pipeline = pipelines(settings.size)[name]
    honest = audited(pipeline, settings, epsilon=2.0, share=1.0, seed=0)
    assert not honest.refutes(2.0), honest
    short = audited(pipeline, settings, epsilon=2.0, share=0.25, seed=0)
    assert short.refutes(2.0), short


def test_the_experiment_writes_what_was_found(tmp_path, monkeypatch):
    one = {"whole updates, trusted server": pipelines(64)["whole updates, trusted server"]}
    monkeypatch.setattr("sketchfed_lab.experiments.privacy_audit.pipelines", lambda size: one)
    run(replace(SETTINGS, canaries=200, size=64, dim=256), tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "refuted 0 of 1" in table
    assert "0.25 of the noise" in table
