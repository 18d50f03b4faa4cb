"""`sketchfed` as processes that can be killed.

They are forked from a server that has everything imported and compiled, since that takes longer than a run.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Server:
    """Starts commands and tells how they ended; it must not be asked by two threads."""

    def __enter__(self) -> "Server":
        self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._ask("hello") == "hello"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.communicate()

    def start(self, log: Path, *arguments: str) -> int:
        """The id of a new process that does `sketchfed ARGUMENTS` and prints to `log`."""
        pid = self._ask("start", str(log), *arguments)
        assert isinstance(pid, int)
        return pid

    def is_running(self, pid: int) -> bool:
        return bool(self._ask("is_running", pid))

    def wait(self, pid: int) -> int:
        """The exit code of a process; that of a killed one is −9."""
        code = self._ask("wait", pid)
        assert isinstance(code, int)
        return code

    def _ask(self, *question: Any) -> object:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(question), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())


def serve() -> None:
    ended: dict[int, int] = {}
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer: object = what
        if what == "start":
            answer = os.fork() or _command(*arguments)
        elif what == "is_running":
            pid, status = os.waitpid(arguments[0], os.WNOHANG)
            answer = not pid
            if pid:
                ended[pid] = os.waitstatus_to_exitcode(status)
        elif what == "wait":
            (pid,) = arguments
            answer = ended[pid] if pid in ended else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps(answer), flush=True)


def _command(log: str, *arguments: str) -> int:
    """In the child: the command line, printing to a file."""
    from sketchfed.cli import main

    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(handle, standard)
    sys.argv = ["sketchfed", *arguments]
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def warm_up() -> None:
    """Import and compile what a run needs. It leaves no thread behind: forks have none but the one that forked."""
    import torch

    import sketchfed

    torch.set_num_threads(1)
    for name in ("fedavg", "iterative", "fetchsgd"):
        sketchfed.run({"algorithm": {"name": name, "rounds": 1, "local_steps": 1}})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warm_up()
    serve()
