import json
import sys
import tomllib
from pathlib import Path

import pytest

import sketchfed
from sketchfed.cli import main
from sketchfed.cli.run import EMBEDDED
from sketchfed.report.units import shown_share
from sketchfed.runs.folder import is_finished
from sketchfed.testing import pretended

SMALL = """
[data]
clients = 3

[algorithm]
name = "{name}"
rounds = 3
local_steps = 2
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `sketchfed ARGUMENTS` and returns what it printed."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sketchfed", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(monkeypatch, capsys):
    """Runs `sketchfed ARGUMENTS` that must be refused, and returns the one sentence that it prints."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sketchfed", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("sketchfed: ")
        assert said.count("\n") == 1
        return said

    return run


@pytest.fixture
def _plain_report(monkeypatch):
    """For tests that are not about it: drawing the report takes longer than their runs."""
    monkeypatch.setattr("sketchfed.report.page.write_report", lambda records, path: path)


def small(path: Path, name: str = "fedavg") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SMALL.format(name=name))
    return path


def interrupted(config: Path, folder: Path) -> Path:
    """The folder of a run that was stopped after two of its three rounds."""

    def stop(line: dict) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, folder=folder, on_round=stop)
    assert not is_finished(folder)
    return folder


def lines_of(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_without_a_configuration_digits_are_compared_three_ways(here, command):
    said = command("run", "--set", "algorithm.rounds=3")
    assert said.startswith("digits · mlp 64-64-64-10 (8,970 parameters) · 20 clients, iid\n")
    for name, row in zip(EMBEDDED, ("fedavg", "iterative srht 1/10", "iterative srht 1/100 4 bits"), strict=True):
        folder = here / "runs" / "digits" / name
        assert f"  {row}  " in said
        assert {"config.toml", "metrics.jsonl", "summary.json", "checkpoint.safetensors"} <= {f.name for f in folder.iterdir()}
        assert tomllib.loads((folder / "config.toml").read_text())["algorithm"]["rounds"] == 3
    assert said.rstrip().endswith("report: runs/digits/report.html")
    assert "<html" in (here / "runs" / "digits" / "report.html").read_text()
    assert r"\toprule" in (here / "runs" / "digits" / "table.tex").read_text()
    totals = [lines_of(here / "runs" / "digits" / name)[-1] for name in EMBEDDED]
    assert totals[0]["uplink_bytes"] > 9 * totals[1]["uplink_bytes"] > 100 * totals[2]["uplink_bytes"]


@pytest.mark.usefixtures("_plain_report")
def test_comparisons_that_follow_each_other_are_kept(here, command):
    for folder in ("digits", "digits-2"):
        assert f"report: runs/{folder}/report.html" in command("run", "--set", "algorithm.rounds=1")
        assert is_finished(here / "runs" / folder / "fedavg")


@pytest.mark.slow
def test_the_embedded_comparison_loses_nothing_to_the_sketches(here, command):
    """As `sketchfed run` is meant to be: a hundredth of the bytes both ways, two points of accuracy at most."""
    command("run")
    last = [lines_of(here / "runs" / "digits" / name)[-1] for name in EMBEDDED]
    assert last[0]["accuracy"] > 0.95
    assert all(line["accuracy"] > last[0]["accuracy"] - 0.02 for line in last)
    assert last[2]["uplink_bytes"] + last[2]["downlink_bytes"] < (last[0]["uplink_bytes"] + last[0]["downlink_bytes"]) / 100


def test_several_configurations_are_run_and_compared(here, command):
    small(here / "whole.toml")
    small(here / "tenth.toml", "iterative")
    said = command("run", "whole.toml", "tenth.toml", "--set", "seed=4", "--out", "results")
    assert "3/3" in said
    assert said.rstrip().endswith("report: results/report.html")
    for name in ("whole", "tenth"):
        assert tomllib.loads((here / "results" / name / "config.toml").read_text())["seed"] == 4
    page = (here / "results" / "report.html").read_text()
    assert "fedavg" in page
    assert "iterative srht 1/10" in page


def test_one_configuration_has_its_report_in_its_folder(here, command):
    said = command("run", str(small(here / "only.toml")))
    assert said.rstrip().endswith("report: runs/only/report.html")
    assert {path.name for path in (here / "runs").iterdir()} == {"only"}
    assert {path.name for path in (here / "runs" / "only").iterdir()} >= {"report.html", "table.tex"}
    assert json.loads((here / "runs" / "only" / "summary.json").read_text())["name"] == "only"


@pytest.mark.usefixtures("_plain_report")
def test_the_same_name_again_is_a_new_folder(here, command):
    """Also within one command, and beside what is there: nothing is overwritten."""
    small(here / "a.toml")
    small(here / "other" / "a.toml", "iterative")
    command("run", "a.toml")
    before = {path: path.read_bytes() for path in (here / "runs").rglob("*") if path.is_file()}
    command("run", "a.toml", "other/a.toml", "a.toml")
    assert {path.name for path in (here / "runs").iterdir() if path.is_dir()} == {"a", "a-2", "a-3", "a-4"}
    assert all(path.read_bytes() == content for path, content in before.items())
    names = [
        tomllib.loads((here / "runs" / f"a{n}" / "config.toml").read_text())["algorithm"]["name"] for n in ("-2", "-3", "-4")
    ]
    assert names == ["fedavg", "iterative", "fedavg"]
    assert lines_of(here / "runs" / "a") == lines_of(here / "runs" / "a-4")


@pytest.mark.usefixtures("_plain_report")
def test_a_name_in_the_configuration_names_the_folder(here, command):
    config = small(here / "a.toml")
    config.write_text('name = "mine [red]"\n' + config.read_text())
    said = command("run", "a.toml")
    assert "mine [red]" in said
    assert (here / "runs" / "mine [red]" / "summary.json").exists()


# --- going on


@pytest.mark.usefixtures("_plain_report")
def test_resume_goes_on_with_all_that_is_unfinished(here, command, refused):
    config = small(here / "a.toml", "iterative")
    command("run", "a.toml")
    interrupted(config, here / "runs" / "b")
    interrupted(config, here / "runs" / "deep" / "b")
    finished = (here / "runs" / "a" / "summary.json").stat().st_mtime_ns
    said = command("run", "--resume")
    assert said.rstrip().endswith("report: runs/report.html")
    assert "runs/deep/b" in said
    assert lines_of(here / "runs" / "b") == lines_of(here / "runs" / "deep" / "b") == lines_of(here / "runs" / "a")
    assert (here / "runs" / "a" / "summary.json").stat().st_mtime_ns == finished
    assert "no interrupted run below runs. Name the folder of a run, or leave out --resume." in refused("run", "--resume")


@pytest.mark.usefixtures("_plain_report")
def test_resume_goes_on_with_a_folder_or_with_the_last_run_of_a_configuration(here, command):
    config = small(here / "a.toml", "iterative")
    command("run", "a.toml")
    interrupted(config, here / "elsewhere")
    command("run", "--resume", "elsewhere")
    interrupted(config, here / "runs" / "a-2")
    command("run", "--resume", "a.toml")
    assert lines_of(here / "elsewhere") == lines_of(here / "runs" / "a-2") == lines_of(here / "runs" / "a")


@pytest.mark.usefixtures("_plain_report")
def test_resume_begins_what_was_never_begun(here, command):
    config = small(here / "a.toml")
    (here / "runs" / "a").mkdir(parents=True)
    command("run", "--resume", str(config))
    assert is_finished(here / "runs" / "a")


# --- what is refused


REFUSED = [
    (["run", "missing.toml"], "cannot read the configuration missing.toml: No such file or directory. Check the path."),
    (["run", "bad.toml"], "bad.toml is not valid TOML: "),
    (["run", "good.toml", "--set", "data.name=minst"], "there is no data set named 'minst'. Did you mean 'mnist'?"),
    (["run", "good.toml", "--set", "algorithm.rouns=1"], "there is no key in [algorithm] named 'rouns'."),
    (["run", "good.toml", "--set", "algorithm.rounds"], "--set takes TABLE.KEY=VALUE"),
    (["run", "good.toml", "--set", "data.name=mnist"], "but SKETCHFED_DATA, which names its folder, is not set"),
    (["run", "good.toml", "--set", "model.name=lenet"], "Use model 'mlp', or an image data set such as 'mnist'."),
    (["run", "good.toml", "--set", "data.clients=2000"], "Use clients <= 1,438."),
    (["run", "good.toml", "--set", "data.name=nowhere:f"], "there is no module 'nowhere'"),
    (["run", "good.toml", "--set", "name=../up"], "name becomes the name of a folder"),
    (["run", "good.toml", "--out", "bad.toml"], "cannot write results to bad.toml: File exists. Choose another folder"),
    (["run", "--resume", "--set", "seed=1"], "--set and --resume do not go together"),
    (["run", "--resume", "missing"], "cannot read the configuration missing"),
    (["run", "--resume", "."], "holds no run: it has no config.toml"),
    (["report", "missing"], "there is no folder missing"),
    (["report", "."], "config.toml is missing, so . is not the folder of a run"),
]


@pytest.mark.parametrize(("arguments", "why"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_wrong_input_is_one_sentence(here, refused, monkeypatch, arguments, why):
    monkeypatch.delenv("SKETCHFED_DATA", raising=False)
    small(here / "good.toml")
    (here / "bad.toml").write_text("[algorithm\n")
    assert why in refused(*arguments)
    assert not list(here.glob("runs/*/config.toml"))


@pytest.mark.parametrize("name", ["fedavg", "iterative"])
def test_steps_that_are_too_long_are_named_with_what_theory_allows(here, refused, name):
    small(here / "a.toml", name)
    said = refused("run", "a.toml", "--set", "algorithm.local_rate=1e30", "--set", "algorithm.rounds=20")
    assert "Steps are too long: local_rate = 1e+30 with 2 local steps" in said
    assert "Theory allows local_rate = " in said


def test_a_damaged_run_is_one_sentence(here, refused):
    folder = interrupted(small(here / "a.toml", "iterative"), here / "runs" / "a")
    (folder / "metrics.jsonl").write_text("words\n")
    (folder / "checkpoint.safetensors").write_text("words")
    assert "is not a checkpoint of this run" in refused("run", "--resume")


# --- captured energy

ADAPTIVE = SMALL.format(name="dome") + "\n[subspace]\nsize = 20\n"


@pytest.mark.usefixtures("_plain_report")
@pytest.mark.parametrize("width", [80, 130])
def test_captured_energy_is_told_where_there_is_room_for_it(here, command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    (here / "a.toml").write_text(ADAPTIVE)
    said = command("run", "a.toml", "--set", "algorithm.rounds=2")
    shares = [line["captured"] for line in lines_of(here / "runs" / "a")]
    assert all(0 < share < 1 for share in shares)
    assert (f"captured {shown_share(shares[-1])}" in said) == (shown_share(sum(shares) / 2) in said) == (width == 130)
    assert ("not for publication" in said) == (width == 130)
    assert "captured" not in command("run", str(small(here / "b.toml")))


# --- TensorBoard


@pytest.mark.usefixtures("_plain_report")
def test_tensorboard_gets_captured_energy_where_it_is_measured(here, command):
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (here / "a.toml").write_text(ADAPTIVE)
    command("run", "a.toml", "--tensorboard", "--set", "engine.evaluate_every=2")
    events = loading.EventAccumulator(str(here / "runs" / "a" / "tensorboard")).Reload()
    measured = {line["round"]: line["captured"] for line in lines_of(here / "runs" / "a") if line["captured"] is not None}
    assert measured.keys() == {2, 3}
    assert {event.step: event.value for event in events.Scalars("captured")} == pytest.approx(measured)


@pytest.mark.usefixtures("_plain_report")
def test_tensorboard_gets_every_round_once(here, command):
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = small(here / "a.toml", "iterative")
    interrupted(config, here / "runs" / "a")
    command("run", "--resume", "a.toml", "--tensorboard")
    events = loading.EventAccumulator(str(here / "runs" / "a" / "tensorboard")).Reload()
    assert {"loss", "accuracy", "uplink_bytes", "downlink_bytes", "seconds"} <= set(events.Tags()["scalars"])
    lines = lines_of(here / "runs" / "a")
    seen = {event.step: event.value for event in events.Scalars("uplink_bytes")}
    assert seen == {line["round"]: pytest.approx(line["uplink_bytes"]) for line in lines if line["round"] in seen}
    assert 3 in seen


def test_without_tensorboard_the_extra_is_named_before_anything_is_done(here, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    small(here / "a.toml")
    assert "TensorBoard is not installed. Install it: pip install 'sketchfed[tensorboard]'." in refused(
        "run", "a.toml", "--tensorboard"
    )
    assert not (here / "runs" / "a").exists()


# --- report


def test_report_compares_runs_that_are_there(here, command):
    small(here / "a.toml")
    small(here / "b.toml", "iterative")
    sketchfed.run("a.toml", folder="runs/a")
    sketchfed.run("b.toml", folder="runs/b")
    said = command("report", "runs/a", "runs/b")
    assert "fedavg" in said
    assert "iterative srht 1/10" in said
    assert said.splitlines()[-2:] == ["LaTeX:  runs/table.tex", "report: runs/report.html"]
    assert "<html" in (here / "runs" / "report.html").read_text()
    assert r"\toprule" in (here / "runs" / "table.tex").read_text()


@pytest.mark.usefixtures("_plain_report")
def test_a_report_goes_to_its_run_or_where_it_is_told(here, command):
    sketchfed.run(small(here / "a.toml"), folder="runs/a")
    assert command("report", "runs/a").splitlines()[-1] == "report: runs/a/report.html"
    assert command("report", "runs/a", "--out", "pages/[b].html").splitlines()[-1] == "report: pages/[b].html"
    assert (here / "pages" / "table.tex").exists()


@pytest.mark.usefixtures("_plain_report")
def test_a_run_that_diverges_does_not_keep_the_others_from_running(here, refused):
    wild = small(here / "wild.toml")
    wild.write_text(wild.read_text() + "local_rate = 1e30\n")
    said = refused("run", str(wild), str(small(here / "tame.toml")))
    assert "wild: " in said
    assert "1/(8(1 + α)LK)" in said
    assert is_finished(here / "runs" / "tame")


@pytest.mark.usefixtures("_plain_report")
def test_runs_and_what_is_resumed_are_put_on_a_device(here, command, refused):
    pretended()
    small(here / "fedavg.toml")
    command("run", "fedavg.toml", "--device", "pretend")
    folder = here / "runs" / "fedavg"
    assert tomllib.loads((folder / "config.toml").read_text())["engine"]["device"] == "pretend"
    assert "engine.device = 'cuda:9' is not there" in refused("run", "fedavg.toml", "--device", "cuda:9")
    assert "engine.device = 'cuda:9' is not there" in refused("run", "--resume", str(folder), "--device", "cuda:9")
    command("run", "--resume", str(interrupted(here / "fedavg.toml", here / "elsewhere")), "--device", "pretend")
    assert is_finished(here / "elsewhere")
    assert [line["round"] for line in lines_of(here / "elsewhere")] == [1, 2, 3]


@pytest.mark.usefixtures("_plain_report")
def test_a_run_without_a_server_shows_how_far_its_nodes_are_apart(here, command):
    config = small(here / "ring.toml", "gossip")
    config.write_text(config.read_text() + '\n[graph]\nname = "ring"\n')
    said = command("run", str(config))
    last = lines_of(here / "runs" / "ring")[-1]
    heading, _, row = said.partition("  run ")[2].splitlines()[:3]
    assert heading.split() == ["accuracy", "farthest", "consensus", "total"]
    assert f"  {last['farthest_accuracy']:.3f}  " in row
    assert "sent" in said
    assert "farthest is that of the node whose model is farthest" in " ".join(said.split())
