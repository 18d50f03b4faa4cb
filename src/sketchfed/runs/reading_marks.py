"""Attributes of a Dataset that change while it is read: caches, counters, and files that are opened late."""

import dis
from collections.abc import Iterator
from functools import cache, cached_property
from types import CodeType, FunctionType
from typing import Any

_READ = ("__getitem__", "__getitems__", "__iter__", "__next__", "__len__")
"""The methods by which data is read. They and what they call on `self` are looked at."""
_CHANGING = {
    "__setitem__", "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem",
    "popleft", "remove", "setdefault", "update",
}  # fmt: skip
"""Methods that change the container they are called on."""
_ME = ""
"""Where a value comes from if it is the object itself. Otherwise it is the name of the object's attribute, or None."""
_Source = str | None
_LOADS = {"LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
_STORES = {"STORE_FAST", "STORE_DEREF"}
_PASSING = ("POP", "JUMP", "RESUME", "NOP", "PRECALL", "KW_NAMES", "COPY_FREE", "MAKE_CELL", "RETURN")


@cache
def changed_by_reading(kind: type[Any]) -> frozenset[str]:
    """The names of attributes that the methods by which objects of a class are read assign, or change in place.

    The bytecode says so: `self.count += 1`, `self.memo[i] = x`, `self.memo.setdefault(i, x)`, and `cached_property`. What a
    method of another object does is not known.
    """
    found = {name for part in kind.__mro__ for name, member in vars(part).items() if isinstance(member, cached_property)}
    left, seen = list(_READ), set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            for function in _definitions(kind, name):
                changed, used = _Tracer(function.__code__).result
                found |= changed
                left.extend(used)
    return frozenset(found)


def _definitions(kind: type, name: str) -> Iterator[FunctionType]:
    for part in kind.__mro__:
        member: Any = vars(part).get(name)
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if isinstance(function, FunctionType):
            yield function


class _Tracer:
    """Follows where the values on Python's stack come from, from instruction to instruction.

    Jumps are not followed. A value of which the source is not known counts as the function's own.
    """

    def __init__(self, code: CodeType, me: str | None = None) -> None:
        self._stack: list[_Source] = []
        self._local: dict[str, _Source] = {}
        self._changed: set[str] = set()
        self._used: set[str] = set()
        me = me or (code.co_varnames[0] if code.co_argcount else None)
        if me is not None:
            self._local[me] = _ME
        for step in dis.get_instructions(code):
            self._take(step)
        for inner in code.co_consts:
            if isinstance(inner, CodeType) and me in inner.co_freevars:
                changed, used = _Tracer(inner, me).result
                self._changed |= changed
                self._used |= used

    @property
    def result(self) -> tuple[set[str], set[str]]:
        """The attributes that are changed, and all that are used."""
        return self._changed, self._used

    def _take(self, step: dis.Instruction) -> None:
        name, argument = step.opname, step.argval
        if name in _LOADS:
            self._stack.append(self._local.get(argument))
        elif name in _STORES:
            self._local[argument] = self._pop()
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._load(argument, self._pop(), copies=1 + dis.stack_effect(step.opcode, step.arg))
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            owner = self._pop()
            self._change(argument if owner == _ME else owner)
            if name == "STORE_ATTR":
                self._pop()
        elif name == "BINARY_SUBSCR":
            self._pop()
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            self._pop()
            self._change(self._pop())
            if name == "STORE_SUBSCR":
                self._pop()
        elif name == "COPY":
            self._stack.append(self._stack[-step.argval] if len(self._stack) >= step.argval else None)
        elif name == "SWAP" and len(self._stack) >= step.argval:
            self._stack[-1], self._stack[-step.argval] = self._stack[-step.argval], self._stack[-1]
        else:
            self._other(name, dis.stack_effect(step.opcode, step.arg, jump=False))

    def _load(self, name: str, owner: _Source, *, copies: int) -> None:
        if owner == _ME:
            self._used.add(name)
        elif name in _CHANGING:
            self._change(owner)
        self._stack += [name if owner == _ME else owner] * copies

    def _change(self, source: _Source) -> None:
        if source:
            self._changed.add(source)

    def _other(self, name: str, effect: int) -> None:
        """Any other instruction leaves a value of its own on top, unless all it does is to pop or to jump."""
        if effect < 0:
            del self._stack[effect:]
        self._stack += [None] * effect
        if self._stack and not name.startswith(_PASSING):
            self._stack[-1] = None

    def _pop(self) -> _Source:
        return self._stack.pop() if self._stack else None
