import json
import re

import pytest

from report.conftest import graph_file, metrics, without_server
from sketchfed.errors import InputError
from sketchfed.report.loading import read


def refusal(folder) -> str:
    with pytest.raises(InputError) as refused:
        read(folder)
    return str(refused.value)


def edit_line(folder, number: int, **changes) -> None:
    """Change values of a line of metrics.jsonl; a value of ... takes the key away."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[number - 1] = {key: value for key, value in (lines[number - 1] | changes).items() if value is not ...}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_record_says_what_the_run_came_to(run):
    record = read(run("a", config="[data]\nname = 'digits'", rounds=5, up=1_000, down=3_000, epsilon=lambda n: n / 10))
    assert record.config["data"] == {"name": "digits"}
    assert "[data]" in record.config_text
    assert record.summary.label == "a"
    assert record.rounds == 5
    assert record.final_accuracy == record.best_accuracy == 1 - 0.5**5
    assert record.final_loss == record.best_loss == 0.5**5
    assert (record.uplink_bytes, record.downlink_bytes) == (20_000, 60_000)
    assert record.participations == 20
    assert record.epsilon == 0.5
    assert record.seconds == 10


def test_the_final_accuracy_is_the_last_one_evaluated_and_the_best_may_be_earlier(run):
    record = read(run("a", accuracy=lambda n: {2: 0.9, 4: 0.8}.get(n), loss=lambda n: {2: 0.1, 4: 0.2}.get(n)))
    assert (record.final_accuracy, record.best_accuracy) == (0.8, 0.9)
    assert (record.final_loss, record.best_loss) == (0.2, 0.1)


def test_captured_energy_is_the_mean_over_the_rounds_that_measured_it(run):
    assert read(run("a", captured=lambda n: {2: 0.5, 4: 0.25}.get(n))).mean_captured == 0.375
    assert read(run("b", captured=lambda n: None)).mean_captured is None
    assert read(run("c")).mean_captured is None  # a run that did not know of it


def test_the_first_round_at_a_target_counts_the_bytes_by_then(run):
    record = read(run("a"))
    reached = record.first_at_accuracy(0.75)
    assert (reached.round, reached.total_bytes) == (2, 32_000)
    assert record.first_at_loss(0.125).round == 3
    assert record.first_at_accuracy(0.99) is None
    assert record.first_at_loss(0.001) is None


def test_a_run_that_has_not_finished_a_round_has_nothing_to_tell(run):
    record = read(run("a", lines=[]))
    assert (record.rounds, record.uplink_bytes, record.participations, record.seconds) == (0, 0, 0, 0)
    assert record.final_accuracy is record.best_accuracy is record.final_loss is record.best_loss is record.epsilon is None
    assert record.first_at_accuracy(0.1) is None


def test_a_last_line_that_a_crash_cut_short_is_ignored(run):
    folder = run("a", rounds=3)
    whole = (folder / "metrics.jsonl").read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for kept in range(1, len(last) - 2):  # what is left of the line, up to but without its last brace
        (folder / "metrics.jsonl").write_bytes(whole[: len(whole) - len(last) + kept])
        assert read(folder).rounds == 2
    (folder / "metrics.jsonl").write_bytes(whole + '{"label": "ε'.encode()[:-1])
    assert read(folder).rounds == 3


def test_a_whole_last_line_counts_without_its_line_break(run):
    folder = run("a", rounds=3)
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().rstrip("\n"))
    assert read(folder).rounds == 3


@pytest.mark.parametrize(
    "damage", ['{"round": 2, "lo', "", "[]", "\x00\x00", "7", "[" * 100_000, '{"round": ' + "9" * 5_000 + "}"]
)
def test_a_malformed_line_in_the_middle_is_refused(run, damage):
    folder = run("a", rounds=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], damage, lines[2], ""]))
    said = refusal(folder)
    assert "a/metrics.jsonl, line 2: not a JSON object" in said
    assert "run it anew" in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"accuracy": float("nan")}, "'accuracy' must be a finite number from 0 to 1, got nan"),
        ({"accuracy": 1.7}, "'accuracy' must be a finite number from 0 to 1, got 1.7"),
        ({"loss": float("inf")}, "'loss' must be a finite number, got inf"),
        ({"loss": "low"}, "'loss' must be a finite number, got 'low'"),
        ({"loss": 10**400}, "'loss' must be a finite number, got 1000"),
        ({"loss": True}, "'loss' must be a finite number, got True"),
        ({"loss": ...}, "'loss' is missing"),
        ({"participants": -1}, "'participants' must be an integer from 0 to 2^63 - 1, got -1"),
        ({"uplink_bytes": 1.5}, "'uplink_bytes' must be an integer from 0 to 2^63 - 1, got 1.5"),
        ({"uplink_bytes": 2**70}, "'uplink_bytes' must be an integer"),
        ({"downlink_bytes": None}, "'downlink_bytes' must be an integer from 0 to 2^63 - 1, got null"),
        ({"downlink_bytes": 7}, "'downlink_bytes' falls from 12000 to 7, but it is a total since the start"),
        ({"seconds": -1}, "'seconds' must be a finite number from 0 on, got -1"),
        ({"round": 1}, "round 1 comes after round 1"),
        ({"round": 0}, "'round' must be an integer from 1 to 2^63 - 1, got 0"),
        ({"epsilon": 1.0}, "'epsilon' is 1.0 after null"),
        ({"captured": 1.5}, "'captured' must be a finite number from 0 to 1, got 1.5"),
        ({"captured": "all"}, "'captured' must be a finite number from 0 to 1, got 'all'"),
        ({"epsilon": -1.0}, "'epsilon' must be a finite number from 0 on, got -1.0"),
    ],
)
def test_a_wrong_value_is_refused_by_file_line_and_key(run, changes, why):
    folder = run("a", rounds=3)
    edit_line(folder, 2, **changes)
    assert re.search(rf"a/metrics\.jsonl, line 2: {re.escape(why)}.*run it anew", refusal(folder))


def test_spent_privacy_stays_spent(run):
    assert "line 2: 'epsilon' falls from 2.0 to 1.0" in refusal(run("a", epsilon=lambda n: 3.0 - n))


@pytest.mark.parametrize("file", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_missing_file_is_named(run, file):
    folder = run("a")
    (folder / file).unlink()
    said = refusal(folder)
    assert f"{file} is missing" in said
    assert "sketchfed run" in said


@pytest.mark.parametrize("file", ["config.toml", "metrics.jsonl", "summary.json"])
def test_bytes_that_are_no_text_are_refused(run, file):
    folder = run("a")
    (folder / file).write_bytes(b"\xff\xfe\n")
    said = refusal(folder)
    assert file in said
    assert "not UTF-8 text" in said


def test_a_folder_in_the_place_of_a_file_is_refused(run):
    folder = run("a")
    (folder / "summary.json").unlink()
    (folder / "summary.json").mkdir()
    assert "summary.json cannot be read" in refusal(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert "there is no folder" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["seed = ", "a = " + "[" * 100_000])
def test_a_configuration_that_is_not_toml_is_refused(run, text):
    folder = run("a")
    (folder / "config.toml").write_text(text)
    assert "config.toml is not TOML" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"label": 3}, "'label' must be a line of text"),
        ({"label": "two\nlines"}, "'label' must be a line of text"),
        ({"name": "\x1b[31mred"}, "'name' must be a line of text"),
        ({"data": "\ud800"}, "'data' must be a line of text"),
        ({"model": "m" * 201}, "'model' must be a line of text, at most 200 characters"),
        ({"dim": 0}, "'dim' must be an integer from 1"),
        ({"clients": "many"}, "'clients' must be an integer from 1"),
        ({"finished": 1}, "'finished' must be true or false, got 1"),
        ({"versions": "new"}, "'versions' must be a table"),
        ({"versions": {"torch": 2}}, "'torch' must be a line of text"),
    ],
)
def test_a_wrong_value_of_the_summary_is_refused(run, changes, why):
    said = refusal(run("a", summary=changes))
    assert f"a/summary.json: {why}" in said
    assert said.isprintable()


def test_a_record_cannot_be_changed(run):
    with pytest.raises(AttributeError):
        read(run("a")).summary = None


EDGES = [(0, 1), (1, 2), (0, 2)]


def test_a_run_without_a_server_says_how_far_nodes_are_apart_and_what_passed(run):
    lines = without_server(metrics())
    record = read(run("a", lines=lines, summary={"clients": 3}, graph=graph_file(EDGES, nodes=3, sent=lambda a, b: a + 1)))
    assert (record.apart.consensus, record.apart.node_bytes, record.apart.edge_bytes) == (0.4, 6_666, 10_000)
    assert record.last_apart.farthest_accuracy == record.final_accuracy / 2
    assert record.total_bytes == record.uplink_bytes
    assert record.network.sent == (2, 4, 6)
    assert [link.bytes for link in record.network.links] == [3, 4, 5]
    served = read(run("b"))
    assert (served.apart, served.network, served.total_bytes) == (None, None, 80_000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 4}, "'nodes' is 4, and summary.json names 3 clients"),
        ({"nodes": "3"}, "'nodes' must be an integer"),
        ({"name": "a\x1b[31m"}, "'name' must be a line of text"),
        ({"spectral_gap": 1.5}, "'spectral_gap' must be a finite number from 0 to 1"),
        ({"diameter": None}, "'diameter' must be an integer"),
        ({"links": None}, "'links' must be a list"),
        ({"links": [[0, 1, 5]]}, "two nodes and the bytes in both directions"),
        ({"links": [[0, 1, 5, -1]]}, "links: 'down' must be an integer from 0"),
        ({"links": [[0, True, 5, 1]]}, "links: 'high' must be an integer"),
        ({"links": [[1, 0, 5, 5]]}, "the lower number first"),
        ({"links": [[0, 3, 5, 5]]}, "pairs of nodes below 3"),
        ({"links": [[0, 1, 5, 5], [0, 1, 5, 5]]}, "the link 0–1 twice"),
    ],
)
def test_a_graph_that_is_not_one_is_refused_with_file_and_key(run, changes, words):
    said = refusal(run("a", summary={"clients": 3}, graph=graph_file(EDGES, nodes=3) | changes))
    assert words in said
    assert "graph.json" in said


@pytest.mark.parametrize(
    ("key", "value"), [("consensus", -1), ("farthest_accuracy", 1.5), ("node_bytes", None), ("lost", 0.5), ("edge_bytes", ...)]
)
def test_what_nodes_measured_is_checked(run, key, value):
    folder = run("a", lines=without_server(metrics()))
    edit_line(folder, 2, **{key: value})
    assert f"'{key}'" in refusal(folder)


def test_without_a_server_a_goal_is_reached_when_the_farthest_node_is_there(run):
    """The mean of all models, which no node has, gets there earlier."""
    record = read(run("a", lines=without_server(metrics(rounds=8))))
    mean = next(line.round for line in record.metrics if line.accuracy >= 0.45)
    farthest = next(line.round for line in record.metrics if line.apart.farthest_accuracy >= 0.45)
    assert mean < farthest == record.first_at_accuracy(0.45).round
    assert record.best_reached_accuracy < record.best_accuracy


def test_nodes_that_are_missing_are_counted(run):
    lines = [line | {"nodes_gone": 2} for line in without_server(metrics())]
    assert read(run("a", lines=lines)).apart.gone == 2
