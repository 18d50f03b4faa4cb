import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import Replica
from sketchfed.config import load_config
from sketchfed.runs.scoring import Scorer
from sketchfed.runs.workload import from_config
from sketchfed.vectors import flatten


def test_a_score_is_the_same_for_any_number_of_workers():
    workload = from_config(load_config({}))
    trainer, weights = workload.trainer(), flatten(workload.module)
    scorers = [Scorer(workload, trainer, PublicSeed(0), workers=workers) for workers in (1, 4)]
    one, four = (scorer.score(Replica(round=0, weights=weights)) for scorer in scorers)
    chunks = workload.test_chunks()
    assert one == four
    assert one.accuracy == sum(trainer.score(weights, chunk)[1] for chunk in chunks) / sum(len(chunk.x) for chunk in chunks)
    for scorer in scorers:
        scorer.close()


def test_what_packets_capture_is_measured_on_the_same_examples_each_time():
    tables = {"algorithm": {"name": "dome"}, "data": {"clients": 4}}
    workload = from_config(load_config(tables))
    trainer = workload.trainer()
    config = load_config(tables).completed(
        dim=trainer.dim, sizes=[len(part) for part in workload.parts], module=workload.module
    )
    algorithm = config.algorithm
    replica = algorithm.begin(flatten(workload.module)).replica
    scorer = Scorer(workload, trainer, PublicSeed(0), workers=2)
    first, second = (scorer.captured(algorithm, replica) for _ in range(2))
    scorer.close()
    assert first is not None
    assert first == second
    assert 0 < first < 1
    assert torch.equal(replica.weights, flatten(workload.module))
