import base64
import hashlib
import json
import re
import shutil
import subprocess
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path

import pytest
import vl_convert

import sketchfed.report
from report.conftest import graph_file, metrics, without_server
from sketchfed.errors import InputError
from sketchfed.report.curves import MOST_STYLED, chart_data, styles, thinned
from sketchfed.report.groups import group_seeds
from sketchfed.report.loading import read
from sketchfed.report.page import write_report
from sketchfed.report.sections import MOST_DRAWN

NASTY = """</script><script>alert(1)</script><img src=x onerror=alert(2)> "'&amp;"""
EMPTY_ELEMENTS = {"meta", "input", "img", "br", "line"}


class Page(HTMLParser):
    """A written page, taken apart; fails on elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.data: dict[str, object] = {}
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1:] != ["script"]:
            self.texts.append(text)
        elif "id" in (last := self.tags[-1][1]):
            assert "<" not in text
            self.data[last["id"]] = json.loads(text)
        else:
            self.scripts.append(text)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def spec(self, name: str) -> dict:
        """A chart of the page with its data, as the page's script puts it together."""
        (spec,) = (chart["spec"] for chart in self.data["charts"] if chart["name"] == name)
        return spec | {"datasets": {"points": self.data["points"]}, "width": 400}


def page_of(*folders: Path, path: Path) -> Page:
    return Page(write_report([read(folder) for folder in folders], path / "report.html"))


@pytest.fixture
def page(tmp_path):
    return lambda *folders: page_of(*folders, path=tmp_path)


@pytest.fixture(scope="module")
def one(shared_run, tmp_path_factory):
    """The page of one plain run, of which clients are sent much and send little. Charts take their time, so tests share it."""
    return page_of(shared_run("one", up=1_000, down=10_000_000), path=tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(shared_run, tmp_path_factory):
    """The page of a plain run and of one that is private and measured what it captured."""
    measured = shared_run("measured", config="x = 1", epsilon=lambda n: n / 10, captured=lambda n: n / 10)
    return page_of(shared_run("plain"), measured, path=tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def seeds(shared_run, tmp_path_factory):
    """The page of three seeds."""
    folders = [
        shared_run(f"r{n}", seed=n, accuracy=lambda _, n=n: n / 10, captured=lambda _, n=n: n / 10, summary={"label": "l"})
        for n in (5, 7, 9)
    ]
    return page_of(*folders, path=tmp_path_factory.mktemp("seeds"))


def drawn_lines(spec: dict) -> int:
    svg = vl_convert.vegalite_to_svg(spec)
    (lines,) = re.findall(r'<g class="mark-group role-scope layer_\d+_pathgroup".*?(?=<g class="mark-symbol)', svg, re.DOTALL)[
        -1:
    ]
    return lines.count('class="mark-line')


def test_a_page_fetches_nothing_and_holds_its_scripts(two):
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", two.source))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://www.w3.org/2000/xmlns/"}
    assert not [tag for tag, attributes in two.tags if {"src", "href", "srcset", "action"} & set(attributes)]
    assert not {tag for tag, _ in two.tags} & {"link", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"@import|url\(", two.source.partition("</style>")[0])
    assert "window.vegaEmbed" in two.scripts[0]


def test_only_the_scripts_of_the_page_may_run_and_nothing_may_be_fetched(one):
    (policy,) = (given["content"] for tag, given in one.tags if given.get("http-equiv") == "Content-Security-Policy")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    assert allowed == {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in one.scripts}
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_texts_from_files_never_become_markup(run, page, one):
    summary = dict.fromkeys(("name", "label", "model", "data"), NASTY) | {"versions": {NASTY: NASTY}}
    folder = run("b", summary=summary, config="[x]")
    (folder / "config.toml").write_text(f"seed = 1\n# {NASTY}\n")
    made = page(folder)
    assert [tag for tag, _ in made.tags if tag not in ("p", "small")] == [
        tag for tag, _ in one.tags if tag not in ("p", "small")
    ]
    assert not [name for _, attributes in made.tags for name in attributes if name.startswith("on")]
    assert made.text.count(NASTY) >= 6
    assert {point["run"] for point in made.data["points"]} == {NASTY}


def test_the_main_picture_comes_first_and_draws_a_line_a_run(run, page):
    made = page(run("a"), run("b", config="x = 1"), run("c", config="x = 2", accuracy=lambda n: None))
    assert [chart["name"] for chart in made.data["charts"]] == [
        "accuracy-against-bytes",
        "accuracy-against-rounds",
        "loss-against-rounds",
    ]
    assert drawn_lines(made.spec("accuracy-against-bytes")) == 2
    assert drawn_lines(made.spec("loss-against-rounds")) == 3
    assert "Without accuracy, so not drawn here: c." in made.text


@pytest.mark.parametrize(("direction", "labels"), [("uplink", "4 kB"), ("downlink", "40 MB"), ("both", "40 MB")])
def test_the_main_picture_shows_either_direction_or_both(one, direction, labels):
    spec = deepcopy(one.spec("accuracy-against-bytes"))
    (choice,) = (param for param in spec["params"] if param["name"] == "direction")
    assert choice["value"] == "both"
    choice["value"] = direction
    shown = re.findall(r">([\d.]+ [kMG]?B)<", vl_convert.vegalite_to_svg(spec))
    assert labels in shown


def test_the_page_offers_each_direction_and_a_close_up(one):
    inputs = [given for tag, given in one.tags if tag == "input"]
    assert [given.get("value") for given in inputs if given["data-signal"] == "direction"] == ["both", "uplink", "downlink"]
    assert [given["type"] for given in inputs if given["data-signal"] == "closeup"] == ["checkbox"]


def test_privacy_is_drawn_and_told_only_if_a_run_claims_it(one, two):
    assert "ε" not in one.text
    assert drawn_lines(two.spec("epsilon-against-rounds")) == 1


def test_captured_energy_is_drawn_and_told_only_if_a_run_measured_it(one, two):
    assert "aptured" not in one.text + json.dumps(one.data)
    assert two.data["charts"][-1]["name"] == "captured-against-rounds"
    assert drawn_lines(two.spec("captured-against-rounds")) == 1
    assert re.findall(r">(\d+%)<", vl_convert.vegalite_to_svg(two.spec("captured-against-rounds")))[:2] == ["0%", "10%"]
    assert two.text.count("measured on training data without noise, it is for the operator of a simulation") == 3
    assert {point.get("shown_captured") for point in two.data["points"] if point["run"] == "plain"} == {None}
    assert [point["shown_captured"] for point in two.data["points"] if point["run"] == "measured"][:2] == ["10.0%", "20.0%"]


def test_every_round_tells_its_bytes_privacy_and_captured_energy(two):
    for chart in two.data["charts"]:
        (near,) = (layer["encoding"] for layer in chart["spec"]["layer"] if "tooltip" in layer["encoding"])
        told = near["tooltip"]["value"]["expr"]
        assert all(f").{field}" in told for field in ("round", "up", "down", "total", "shown_epsilon", "shown_captured"))


def test_nothing_captured_is_drawn_too(run, page):
    made = page(run("a", captured=lambda n: 0.0))
    assert drawn_lines(made.spec("captured-against-rounds")) == 1


def test_captured_energy_of_several_seeds_is_a_band(seeds):
    assert {point["shown_captured"] for point in seeds.data["points"]} == {"70.0% (50.0%–90.0%)"}
    assert 'class="mark-area' in vl_convert.vegalite_to_svg(seeds.spec("captured-against-rounds"))


def test_seeds_are_one_line_with_a_band_from_least_to_most(seeds):
    assert len(seeds.data["points"]) == 5
    for point in seeds.data["points"]:
        assert (point["key"], point["accuracy_low"], point["accuracy_high"]) == ("g0", 0.5, 0.9)
        assert point["accuracy"] == pytest.approx(0.7)
    spec = seeds.spec("accuracy-against-bytes")
    assert drawn_lines(spec) == 1
    assert 'class="mark-area' in vl_convert.vegalite_to_svg(spec)
    assert "3 seeds" in seeds.text
    assert "Bands go from the least to the most" in seeds.text


def test_runs_without_accuracy_are_drawn_by_loss(run, page):
    made = page(*(run(f"r{n}", config=f"x = {n}", accuracy=lambda _: None) for n in range(2)))
    assert [chart["name"] for chart in made.data["charts"]] == ["loss-against-bytes", "loss-against-rounds"]
    assert drawn_lines(made.spec("loss-against-bytes")) == 2
    assert "loss 0.05" in made.text
    assert "accuracy" not in made.text


def test_losses_below_zero_are_drawn_too(run, page):
    made = page(run("a", accuracy=lambda _: None, loss=lambda n: 1.0 - n))
    assert drawn_lines(made.spec("loss-against-bytes")) == 1


def test_a_run_that_has_not_finished_a_round_is_a_page_without_charts(run, page):
    made = page(run("a", lines=[], summary={"finished": False}))
    assert "There is nothing to draw yet" in made.text
    assert made.scripts == []
    assert "unfinished after round 0" in made.text


def test_a_single_evaluation_is_a_dot(run):
    groups = group_seeds([read(run("a", rounds=1)), read(run("b", config="x = 1"))])
    assert [point["dot"] for point in chart_data(groups, styles(groups)) if point["run"] == "a"] == [True]


def test_bytes_to_reach_targets_say_round_and_direction_and_the_headline_compares(run, page):
    text = page(run("thrifty", up=10, down=30), run("lavish", config="x = 1", up=1_000, down=3_000)).text
    assert re.search(r"To reach accuracy 0\.\d+, thrifty sent \d+ B in both\s+directions together and lavish", text)
    assert "100 times as much" in text
    assert "↑ 20.0 kB ↓ 60.0 kB" in text
    assert "round 5" in text


def test_everything_needed_to_run_again_is_there(run, page):
    text = page(run("a b", config="[algorithm]\nrate = 0.125", summary={"versions": {"torch": "9.8.7"}})).text
    assert "rate = 0.125" in text
    assert "sketchfed run 'runs/a b/config.toml'" in text
    assert "It ran on torch 9.8.7." in text
    assert re.search(r"Written by sketchfed \S+, Python 3\.\S+, torch \S+, numpy \S+", text)
    assert "counted at the serializer, headers included; both directions; total over all clients" in text
    assert r"\begin{tabular}" in text


def test_where_the_run_lies_on_this_machine_is_not_told(one, shared_run):
    assert str(shared_run("another").parents[1]) not in one.source


def test_a_mean_that_ends_early_says_why(run, page):
    assert "A mean ends where the first of its seeds does." in page(run("a", seed=1, rounds=3), run("b", seed=2)).text


def test_equal_runs_give_equal_files(run, page):
    folders = run("a"), run("b", config="x = 1")
    assert page(*folders).source == page(*folders).source


def test_a_page_can_be_read_without_seeing_it(run, page):
    made = page(run("a"), run("b", config="x = 1"))
    assert ("html", {"lang": "en"}) in made.tags
    assert [tag for tag, _ in made.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h3", "h3", "h2", "h2", "h2", "h2"]
    assert all("description" in chart["spec"] for chart in made.data["charts"])
    assert all(given["aria-pressed"] == "false" for tag, given in made.tags if tag == "button" and "data-key" in given)
    assert all("aria-labelledby" in given for _, given in made.tags if given.get("role") == "region")
    assert any(given.get("name") == "viewport" for tag, given in made.tags if tag == "meta")


def test_of_many_runs_the_most_notable_are_coloured_and_the_legend_folds_the_others(run, page):
    folders = [run(f"r{n}", config=f"x = {n}", accuracy=lambda _, n=n: 0.8 - n / 200, up=1_000 + n) for n in range(60)]
    made = page(*folders)
    groups = group_seeds([read(folder) for folder in folders])
    notable = [group.label for group, style in zip(groups, styles(groups), strict=True) if style.notable]
    assert notable == [f"r{n}" for n in range(7)]
    assert "53 more, in grey" in made.text
    assert sum(tag == "button" and "data-key" in given for tag, given in made.tags) == 60
    assert [point["notable"] for point in made.data["points"]] == [False] * 53 * 5 + [True] * 7 * 5  # coloured ones above


def test_a_run_that_is_best_for_its_bytes_is_notable_however_bad(run):
    cheap = [run("cheap", accuracy=lambda _: 0.2, up=1, down=1)]
    groups = group_seeds([read(folder) for folder in cheap + [run(f"r{n}", config=f"x = {n}") for n in range(MOST_STYLED)]])
    assert styles(groups)[0].notable


def test_up_to_sixteen_runs_look_different_from_each_other(run):
    groups = group_seeds([read(run(f"r{n}", config=f"x = {n}")) for n in range(MOST_STYLED)])
    assert len({(style.colour, tuple(style.dash)) for style in styles(groups)}) == MOST_STYLED == 16


def test_long_runs_are_thinned_but_keep_first_and_last(run):
    groups = group_seeds([read(run("a", rounds=5_000, accuracy=lambda n: n / 5_000))])
    kept = [point["round"] for point in chart_data(groups, styles(groups))]
    assert len(kept) <= 300
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (1, 5_000)
    assert {2, 3, 4, 5} <= set(kept)  # the logarithmic axis shows them well apart
    assert len(thinned(groups[0].points, 25)) <= 25


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_of_the_page_is_javascript():
    script = Path(sketchfed.report.__file__).with_name("page.js")
    subprocess.run(["node", "--check", script], check=True)


def on_clients(rounds, **figures):
    """Lines of a run whose clients were evaluated in some rounds."""
    lines = metrics(rounds=5)
    for line in lines:
        known = line["round"] in rounds
        line["clients_scored"], line["clients_bytes"] = 20 if known else None, 100
        for name, (mean, worst, spread) in figures.items():
            for end, value in (("", mean), ("_worst", worst), ("_spread", spread)):
                line[f"clients_{name}{end}"] = value if known else None
    return lines


def test_metrics_on_clients_are_a_table_and_charts_only_if_a_run_measured_them(run, page, one):
    shown = page(
        run(
            "a", config="[data]\nclient_validation = 0.2", lines=on_clients({2, 4}, accuracy=(0.912, 0.34, 0.056), f1=(7, 6, 5))
        ),
        run("b", config="[data]\nname = 'digits'"),
    )
    assert "own data" not in one.text
    names = [chart["name"] for chart in shown.data["charts"]]
    assert names[3:5] == ["clients_accuracy-against-rounds", "clients_accuracy_worst-against-rounds"]
    assert drawn_lines(shown.spec("clients_accuracy_worst-against-rounds")) == 1
    table = shown.text[shown.text.index("On each client's own data") :]
    assert all(text in table for text in ("0.912", "0.340", "0.056", "f1", "7.00", "20", "held-out examples"))
    assert [point.get("shown_clients_accuracy") for point in shown.data["points"] if point["run"] == "a"].count("0.912") == 2


def test_clients_that_were_evaluated_once_are_in_the_table_and_not_drawn(run, page):
    shown = page(run("a", lines=on_clients({5}, loss=(0.5, 2.5, 0.1))))
    assert not any("clients" in chart["name"] for chart in shown.data["charts"])
    assert "training examples" in shown.text
    assert "2.50" in shown.text


def test_several_seeds_show_the_mean_over_them(run, page):
    shown = page(*(run(f"r{n}", seed=n, lines=on_clients({4, 5}, loss=(n, n, n)), summary={"label": "l"}) for n in (1, 2)))
    assert "1.50" in shown.text[shown.text.index("On each client's own data") :]


def test_names_of_metrics_never_become_markup_and_values_are_checked(run, page):
    lines = on_clients({4, 5}, **{"<b>x</b>": (1, 1, 1), "loss": (1, 2, 3)})
    assert "<b>x" not in page(run("a", lines=lines)).source
    lines[-1]["clients_loss"] = "much"
    with pytest.raises(InputError, match="'clients_loss' must be a finite number"):
        read(run("b", lines=lines))


RING = [(0, 1), (1, 2), (2, 3), (0, 3)]


def on_ring(run, name, **more):
    more.setdefault("graph", graph_file(RING, nodes=4))
    return run(name, lines=without_server(metrics()), summary={"clients": 4}, **more)


def test_a_run_without_a_server_has_a_picture_of_its_graph_and_of_how_far_nodes_are_apart(run, page, one):
    made = page(on_ring(run, "a"))
    assert [chart["name"] for chart in made.data["charts"]] == [
        "accuracy-against-bytes",
        "accuracy-against-rounds",
        "loss-against-rounds",
        "farthest_accuracy-against-rounds",
        "consensus-against-rounds",
        "consensus-against-bytes",
    ]
    assert all(drawn_lines(chart["spec"] | {"datasets": {"points": made.data["points"]}, "width": 400}) == 1
               for chart in made.data["charts"])  # fmt: skip
    assert sum(tag == "circle" for tag, _ in made.tags) == 4
    assert "ring, 4 nodes, 4 edges, diameter 2, spectral gap 0.250; after round 5." in made.text
    assert "2.00 kB on 4 edges" in made.text
    assert "circle" not in {tag for tag, _ in one.tags}


def test_without_a_server_there_is_no_up_and_no_down(run, page):
    alone, both = page(on_ring(run, "a")), page(on_ring(run, "b"), run("c", config="x = 1"))
    signals = [[given["data-signal"] for tag, given in made.tags if tag == "input"] for made in (alone, both)]
    assert signals == [["closeup"], ["direction"] * 3 + ["closeup"]]
    assert "↑" not in alone.text
    assert "up/client" not in alone.text
    assert {point["both"] for point in alone.data["points"]} == {4_000 * n for n in range(1, 6)}
    near = next(layer["encoding"] for layer in alone.data["charts"][0]["spec"]["layer"] if "tooltip" in layer["encoding"])
    assert '"sent"' in near["tooltip"]["value"]["expr"]


def test_nodes_that_are_all_equal_have_no_line_of_distances(run, page):
    lines = without_server(metrics(), consensus=0.0)
    made = page(run("a", lines=lines, summary={"clients": 4}, graph=graph_file(RING, nodes=4)))
    assert "consensus-against-rounds" not in [chart["name"] for chart in made.data["charts"]]


def test_texts_of_graphs_never_become_markup(run, page):
    made = page(on_ring(run, "a", graph=graph_file(RING, nodes=4, name=NASTY)))
    assert not [name for _, attributes in made.tags for name in attributes if name.startswith("on")]
    assert "img" not in {tag for tag, _ in made.tags}
    assert NASTY in made.text


def test_a_graph_that_was_drawn_anew_says_so(run, page):
    assert "drawn anew every 3 rounds" in page(on_ring(run, "a", graph=graph_file(RING, nodes=4, redraw=3))).text


def test_of_many_graphs_the_first_are_drawn(run, page):
    made = page(*(on_ring(run, f"r{n}", config=f"x = {n}") for n in range(MOST_DRAWN + 2)))
    assert sum(tag == "circle" for tag, _ in made.tags) == 4 * MOST_DRAWN
    assert "2 more graphs are not drawn" in made.text


def test_a_run_without_a_server_whose_file_is_gone_has_its_tables(run, page):
    assert "per edge" in page(on_ring(run, "a", graph=None)).text
