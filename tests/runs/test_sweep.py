import json
import os
import time

import pytest

from sketchfed.errors import InputError, StorageError
from sketchfed.runs import CURVE, Case, read_rows, sweep, trained
from sketchfed.runs import run as train

SMALL = {"data": {"clients": 3}, "algorithm": {"name": "iterative", "rounds": 2}, "sketch": {"ratio": 0.1}}


def cases(*numbers, **tables):
    return [Case(key={"number": number}, tables=tables) for number in numbers]


def squared(case):
    return {"square": case.key["number"] ** 2, "by": os.getpid()}


def fragile(case):
    """Case 1 fails at once; the others take their time."""
    if case.key["number"] == 1:
        raise RuntimeError("number 1 cannot be computed")
    time.sleep(0.1)
    return squared(case)


def never(case):
    raise AssertionError(f"{case.name} was computed again")


def squares(rows):
    return [row["square"] for row in rows]


def test_results_come_in_the_order_of_the_cases_and_are_in_the_file(tmp_path):
    rows = sweep(cases(3, 1, 2), tmp_path / "new" / "results.jsonl", compute=squared)
    assert [(row["key"], row["square"]) for row in rows] == [({"number": 3}, 9), ({"number": 1}, 1), ({"number": 2}, 4)]
    assert read_rows(tmp_path / "new" / "results.jsonl") == rows


def test_what_is_in_the_file_is_not_computed_again(tmp_path):
    path = tmp_path / "results.jsonl"
    first = sweep(cases(1, 2), path, compute=squared)
    before = path.read_bytes()
    assert sweep(cases(2, 1), path, compute=never) == first[::-1]
    assert path.read_bytes() == before
    assert squares(sweep(cases(1, 2, 5), path, compute=squared)) == [1, 4, 25]
    assert path.read_bytes().startswith(before)


def test_keys_are_the_same_in_any_order_of_their_names(tmp_path):
    path = tmp_path / "results.jsonl"
    sweep([Case(key={"size": 5, "number": 2})], path, compute=squared)
    assert squares(sweep([Case(key={"number": 2, "size": 5})], path, compute=never)) == [4]


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_of_their_own_compute_the_cases_and_a_failure_leaves_what_is_finished_and_the_rest_for_later(
    tmp_path, processes
):
    path = tmp_path / "results.jsonl"
    with pytest.raises(RuntimeError, match="number 1 cannot be computed"):
        sweep(cases(0, 1, 2, 3, 4, 5), path, processes=processes, compute=fragile)
    kept = read_rows(path)
    assert 1 <= len(kept) <= (1 if processes == 1 else 5), "what had begun was finished"
    assert (os.getpid() in {row["by"] for row in kept}) == (processes == 1)
    assert squares(sweep(cases(0, 1, 2, 3, 4, 5), path, compute=squared)) == [0, 1, 4, 9, 16, 25]


def test_a_line_that_was_cut_off_is_computed_again(tmp_path):
    path = tmp_path / "results.jsonl"
    sweep(cases(1, 2, 3), path, compute=squared)
    path.write_bytes(path.read_bytes()[:-9])
    assert squares(read_rows(path)) == [1, 4]
    assert squares(sweep(cases(1, 2, 3), path, compute=squared)) == [1, 4, 9]
    assert squares(read_rows(path)) == [1, 4, 9]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "results.jsonl"
    sweep(cases(1, 2), path, compute=squared)
    path.write_bytes(path.read_bytes()[:-1])
    assert squares(sweep(cases(1, 2, 3), path, compute=squared)) == [1, 4, 9]
    assert squares(read_rows(path)) == [1, 4, 9]


def test_a_broken_line_in_the_middle_is_not_thrown_away(tmp_path):
    path = tmp_path / "results.jsonl"
    sweep(cases(1, 2), path, compute=squared)
    spoiled = path.read_text().replace("{", "", 1)
    path.write_text(spoiled)
    with pytest.raises(StorageError, match=r"line 1 of .*results\.jsonl is not a result"):
        sweep(cases(1, 2), path, compute=squared)
    path.write_text("[1]\n" + spoiled.splitlines()[1] + "\n")
    with pytest.raises(StorageError, match="line 1"):
        read_rows(path)


def test_a_result_of_another_configuration_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    sweep(cases(1, data={"clients": 3}), path, compute=squared)
    with pytest.raises(InputError, match=r"another configuration\. Delete that line, or write to another file"):
        sweep(cases(1, data={"clients": 4}), path, compute=squared)
    (row,) = read_rows(path)
    path.write_text(json.dumps({name: value for name, value in row.items() if name != "digest"}) + "\n")
    assert squares(sweep(cases(1, data={"clients": 4}), path, compute=never)) == [1], "older files do not say"


def test_progress_is_told_of_old_rows_and_new_ones(tmp_path):
    path, told = tmp_path / "results.jsonl", []
    sweep(cases(1, 2), path, compute=squared)
    sweep(cases(2, 3), path, compute=squared, on_row=told.append)
    assert squares(told) == [4, 9]


@pytest.mark.parametrize(
    ("given", "how", "why"),
    [
        (cases(1, 1), {}, r'two cases of the sweep have the key \{"number": 1\}'),
        ([Case(key={"number": object()})], {}, "the key of a case must hold plain values"),
        (cases(1), {"processes": 0}, "processes must be a positive integer, got 0"),
        (cases(1), {"processes": True}, "processes must be a positive integer"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_the_work(tmp_path, given, how, why):
    with pytest.raises(InputError, match=why):
        sweep(given, tmp_path / "results.jsonl", compute=never, **how)
    assert not (tmp_path / "results.jsonl").exists()


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write results to"):
        sweep(cases(1), tmp_path / "file" / "results.jsonl", compute=squared)


def test_a_case_is_trained_as_its_tables_say(tmp_path):
    (row,) = sweep([Case(key={"ratio": 0.1}, tables=SMALL)], tmp_path / "results.jsonl")
    lines = train(SMALL).metrics
    assert [point[0] for point in row["curve"]] == [line["round"] for line in lines if line["loss"] is not None]
    last = dict(zip(CURVE, row["curve"][-1], strict=True))
    assert last["uplink_bytes"] == lines[-1]["uplink_bytes"]
    assert last["accuracy"] == pytest.approx(lines[-1]["accuracy"], abs=1e-5)
    assert not row["diverged"]
    assert "epsilon" not in row


def test_training_that_diverges_is_a_result():
    tables = {**SMALL, "algorithm": {"name": "fedavg", "rounds": 5, "local_steps": 20, "local_rate": 1e20}, "sketch": {}}
    del tables["sketch"]
    assert trained(Case(key={}, tables=tables))["diverged"]


def test_a_private_case_says_what_it_spent():
    privacy = {"name": "gaussian", "noise_multiplier": 1.0, "delta": 1e-4}
    row = trained(Case(key={}, tables={**SMALL, "privacy": privacy}))
    assert row["epsilon"] > 0
