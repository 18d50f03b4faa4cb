"""What a server is told when a client refuses or fails. The client's own log has everything.

Three things are a client's own business: its files, what it did in other runs, and its data. Errors of sketchfed that touch the
first two carry another text for the server (`SketchfedError.told`). Errors that are raised while the data is at work, or by
code that is not sketchfed's, may quote the data. Of these a server learns the kind of error only, unless the run hides nothing.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sketchfed.errors import RAISED, SecureSumError, SketchfedError, StorageError, WireError, reason

log = logging.getLogger("sketchfed")

_FILES = "a file that this node needs cannot be used, so the node takes no part. Its own log says which."


class _WithDataError(Exception):
    """Something went wrong while the client's data was at work. Its cause is what did."""


@contextmanager
def data_at_work() -> Iterator[None]:
    """Errors inside may quote the data. Only what sketchfed itself says of the server's messages passes as it is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, WireError | SecureSumError) and _foreign(error) is None:
            raise
        raise _WithDataError from error


def told(error: Exception, *, client: int, hides: bool) -> str:
    """What the server is told of an error, after all of it went to the log. `hides` says whether the data must stay hidden."""
    with_data = isinstance(error, _WithDataError) and isinstance(error.__cause__, Exception)
    raised = error.__cause__ if with_data and isinstance(error.__cause__, Exception) else error
    foreign = raised if with_data else _foreign(raised)
    log.warning("client %d does not answer: %s", client, reason(raised), exc_info=raised if foreign is not None else None)
    if isinstance(raised, SketchfedError) and raised.told is not None:
        return raised.told
    if isinstance(raised, StorageError):
        return _FILES
    if foreign is None:
        return str(raised)
    return f"{RAISED}{_kind(foreign)}; its own log says more." if hides else reason(raised)


def _foreign(error: BaseException) -> BaseException | None:
    """The error, or the one behind it, that is not in sketchfed's own words. None if all of them are."""
    while True:
        if not isinstance(error, SketchfedError) or not _raised_here(error):
            return error
        if error.__cause__ is None:
            return None
        error = error.__cause__


def _raised_here(error: BaseException) -> bool:
    """Whether code of sketchfed raised it: parts that others bring may raise sketchfed's errors, with words of their own."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "sketchfed"


def _kind(error: BaseException) -> str:
    """The name of a kind of error that everybody knows. Names that others gave may tell something."""
    kind = type(error)
    return kind.__name__ if kind.__module__.partition(".")[0] in ("builtins", "sketchfed") else "an error of its own code"
