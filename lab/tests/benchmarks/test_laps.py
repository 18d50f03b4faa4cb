"""The clock of the contestants."""

import subprocess
import sys
import time

import pytest

from sketchfed_lab.benchmarks.peers.laps import Laps, tree_seconds

BUSY = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_rounds_that_are_skipped_are_not_counted():
    laps = Laps(skipped=1, rounds=2)
    for pause in (0.0, 0.05, 0.0, 0.0):
        time.sleep(pause)
        laps()
    assert len(laps.seconds) == 2
    assert sum(laps.seconds) < 0.04


def test_a_round_that_did_not_end_is_missing():
    laps = Laps(skipped=0, rounds=2)
    laps()
    laps()
    assert len(laps.seconds) == 1
    assert laps.cpu_seconds is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_time_of_processes_that_were_started_counts_dead_or_alive():
    laps = Laps(skipped=0, rounds=1)
    laps()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    with subprocess.Popen([sys.executable, "-c", f"{BUSY}\nprint('done', flush=True); input()"], stdin=-1, stdout=-1) as alive:
        alive.stdout.readline()
        laps()
        alive.communicate(b"\n")
    assert laps.cpu_seconds + 0.02 >= 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_other_processes_do_not_count():
    start = tree_seconds()
    code = "from sketchfed_lab.benchmarks.peers.laps import tree_seconds; print(tree_seconds())"
    below = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(below.stdout) < start + 5
    assert tree_seconds() >= start
