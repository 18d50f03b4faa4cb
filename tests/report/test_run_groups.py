import pytest

from sketchfed.report.groups import Spread, group_seeds
from sketchfed.report.loading import read
from sketchfed.report.targets import ScoreTarget, arrival, choose_targets


def grouped(*folders):
    return group_seeds([read(folder) for folder in folders])


def test_runs_that_differ_only_in_seed_and_name_are_one_group_with_mean_and_range(run):
    (group,) = grouped(
        run("a", seed=1, accuracy=lambda n: 0.5, up=100),
        run("b", seed=2, accuracy=lambda n: 0.8, up=300, summary={"label": "a"}),
    )
    assert (group.label, group.note) == ("a", "2 seeds")
    assert group.points[-1].accuracy == Spread(0.65, 0.5, 0.8)
    assert group.points[-1].uplink_bytes == 4 * 5 * 200
    assert [point.round for point in group.points] == [1, 2, 3, 4, 5]


def test_the_same_seed_twice_is_not_called_two_seeds(run):
    (group,) = grouped(run("a", seed=1), run("b", seed=1))
    assert group.note == "2 runs"


def test_a_different_setting_is_a_different_group_and_is_said_in_its_label(run):
    tables = "[algorithm]\nrate = {}\n[sketch]\nname = 'srht'"
    groups = grouped(*(run(f"r{rate}", config=tables.format(rate), summary={"label": "fedavg"}) for rate in (0.1, 0.2)))
    assert [group.label for group in groups] == ["fedavg, rate 0.1", "fedavg, rate 0.2"]


def test_equal_keys_in_different_tables_are_different_settings(run):
    assert len(grouped(run("a", config="[x]\nrate = 1"), run("b", config="[y]\nrate = 1"))) == 2


def test_a_seed_that_is_not_finished_stays_apart_and_says_so(run):
    short = run("c", seed=3, rounds=2, summary={"label": "a", "finished": False})
    groups = grouped(run("a", seed=1), run("b", seed=2, summary={"label": "a"}), short)
    assert [(group.label, group.note) for group in groups] == [("a", "2 seeds"), ("a, seed 3, round 2", "unfinished")]


def test_seeds_that_finished_at_different_rounds_share_the_rounds_that_all_have(run):
    (group,) = grouped(run("a", seed=1, rounds=3), run("b", seed=2, rounds=5))
    assert [point.round for point in group.points] == [1, 2, 3]


def test_labels_that_cannot_be_told_apart_get_the_runs_names(run):
    same = {"label": "a"}
    groups = grouped(*(run(n, config=f'[x]\nt = "{"y" * 40}{n}"', summary=same) for n in ("p", "q")))
    assert [group.label.rpartition(" ")[2] for group in groups] == ["(p)", "(q)"]


def test_control_characters_of_settings_stay_out_of_labels(run):
    groups = grouped(
        run("a", config='x = "\\u001b[31m"', summary={"label": "l"}), run("b", config="x = 'y'", summary={"label": "l"})
    )
    assert all(group.label.isprintable() for group in groups)


def test_a_deeply_nested_configuration_does_no_harm(run):
    assert len(grouped(run("a", config=".".join("a" * 3_000) + " = 1"), run("b", config="b = 1"))) == 2


def test_rounds_that_were_not_evaluated_are_left_out_except_the_last(run):
    (group,) = grouped(run("a", accuracy=lambda n: 0.5 if n == 2 else None, loss=lambda n: None))
    assert [point.round for point in group.points] == [2, 5]


def test_a_target_is_reached_by_the_mean_over_the_runs_that_reached_it(run):
    (group,) = grouped(
        run("a", seed=1, accuracy=lambda n: n / 10),
        run("b", seed=2, accuracy=lambda n: n / 5.1),
        run("c", seed=3, accuracy=lambda n: 0),
    )
    found = arrival(group, ScoreTarget("accuracy", 0.39))
    assert (found.round, found.reached, found.runs, found.all_there) == (3, 2, 3, False)
    assert found.total_bytes == (4 + 2) / 2 * 16_000
    assert arrival(group, ScoreTarget("accuracy", 0.99)) is None


@pytest.mark.parametrize(
    ("bests", "expected"),
    [
        ([0.93, 0.962, 0.985], [0.9, 0.95, 0.97, 0.98]),
        ([0.96, 0.96], [0.9, 0.95, 0.96]),
        ([0.1, 0.93, 0.97], [0.9, 0.95, 0.96, 0.97]),
        ([0.03], []),
        ([0.12], [0.05, 0.1]),
        ([1.0], [0.99, 0.995, 0.999]),
    ],
)
def test_targets_are_round_accuracies_from_what_most_reached_to_what_the_best_did(run, bests, expected):
    groups = grouped(*(run(f"r{n}", config=f"n = {n}", accuracy=lambda _, best=best: best) for n, best in enumerate(bests)))
    assert choose_targets(groups) == [ScoreTarget("accuracy", value) for value in expected]


@pytest.mark.parametrize(
    ("losses", "expected"), [([0.23, 0.09], [0.5, 0.2, 0.1]), ([310.0], [2_000, 1_000, 500]), ([0.0], []), ([-3.0, 2.0], [])]
)
def test_without_accuracy_the_targets_are_losses(run, losses, expected):
    runs = (run(f"r{n}", config=f"n = {n}", accuracy=lambda _: None, loss=lambda _, x=x: x) for n, x in enumerate(losses))
    assert [target.value for target in choose_targets(grouped(*runs))] == pytest.approx(expected)
