"""One contestant in this process: `python -m sketchfed_lab.benchmarks.peers NAME WORK OPTIONS FILE`.

The result goes as JSON into the file.
"""

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from threading import Thread

from sketchfed_lab.benchmarks.peers import Work
from sketchfed_lab.benchmarks.peers.memory import peak_bytes


def end_with(parent: int) -> None:
    """End this process, with its group if it leads one, when the process that asked is gone: nobody waits for a result."""
    while os.getppid() == parent:
        time.sleep(1)
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


name, work, options, target = sys.argv[1:]
Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
laps = import_module(f"sketchfed_lab.benchmarks.peers.{name}").measure(Work(**json.loads(work)), **json.loads(options))
found = {"seconds": laps.seconds, "cpu_seconds": laps.cpu_seconds, "peak_bytes": peak_bytes(), "facts": laps.facts}
Path(target).write_text(json.dumps(found))
