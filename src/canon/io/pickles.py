"""Understand a pickle without unpickling it.

A pickle is a program, and running it runs whatever code it names. Here its operations are only followed: names stay
names, and calls become notes of who was called with what. Tensors of torch are such notes and hold where their numbers
lie; everything else stays inert.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from canon._untrusted import LARGEST, damaged

_MOST_STEPS: Final = 4_000_000
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final[dict[str, Callable[[], Any]]] = {
    "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list,
}  # fmt: skip
_VALUES: Final = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 INT LONG BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE "
    "BINSTRING SHORT_BINSTRING STRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split()
)
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK: Final = object()


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False)
class Note:
    """What a call would have made. It has no text of its own: a hostile pickle could make that endless."""

    called: str
    """Full name of what was called; empty where that is no name."""

    arguments: Any
    state: Any = None
    """What the object would have been filled with."""


@dataclass(eq=False, repr=False)
class Reference:
    """What the pickle says lies outside it: for torch, the numbers of a tensor."""

    identity: Any


@dataclass
class _Machine:
    where: str
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple(self.pop_many(_TUPLES[name])))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.top()
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.top()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self.marked()
        elif name not in ("PROTO", "FRAME"):
            self.build(name, argument)

    def build(self, name: str, argument: Any) -> None:
        """The operations that make objects."""
        stack = self.stack
        match name:
            case "GLOBAL":
                module, _, rest = argument.partition(" ")
                stack.append(Name(module, rest))
            case "STACK_GLOBAL":
                module, rest = self.pop_many(2)
                if not isinstance(module, str) or not isinstance(rest, str):
                    raise TypeError("a name is no text")
                stack.append(Name(module, rest))
            case "TUPLE":
                stack.append(tuple(self.marked()))
            case "LIST":
                stack.append(self.marked())
            case "DICT":
                items = self.marked()
                stack.append({})
                self.fill(items)
            case "APPEND":
                (item,) = self.pop_many(1)
                self.extend([item])
            case "APPENDS" | "ADDITEMS":
                self.extend(self.marked())
            case "SETITEM":
                self.fill(self.pop_many(2))
            case "SETITEMS":
                self.fill(self.marked())
            case "REDUCE" | "NEWOBJ":
                function, arguments = self.pop_many(2)
                stack.append(_call(function, arguments))
            case "NEWOBJ_EX":
                function, arguments, _ = self.pop_many(3)
                stack.append(Note(_full_name(function), arguments))
            case "BUILD":
                (state,) = self.pop_many(1)
                if isinstance(self.top(), Note):
                    self.top().state = state
            case "BINPERSID":
                self.references.append(Reference(self.pop_many(1)[0]))
                stack.append(self.references[-1])
            case _:
                raise damaged(f"the pickle uses the operation {name}, which no checkpoint needs", self.where)

    def top(self) -> Any:
        return self.stack[-1]

    def pop_many(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("the pickle takes more than there is")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def marked(self) -> list[Any]:
        taken: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            taken.append(item)
        return taken[::-1]

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Note):
            raise TypeError("the pickle appends to what is no list")

    def fill(self, items: list[Any]) -> None:
        target = self.top()
        if isinstance(target, Note):
            return
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError("the pickle sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of nested tuples can take for ever, and whole numbers this large can all have one hash.
            if not isinstance(key, str | int | float | bytes | None):
                raise TypeError(f"a {type(key).__name__} is a key")
            if isinstance(key, int) and abs(key) > LARGEST:
                raise ValueError("an int is a key that is too large")
            target[key] = value


def follow(data: bytes, where: str) -> tuple[Any, int]:
    """What a pickle describes, and how many bytes it takes. No code that it names is imported or run.

    >>> import pickle
    >>> follow(pickle.dumps({"width": (3, 4)}, protocol=2), "state.pt")[0]
    {'width': (3, 4)}
    """
    value, size, _ = follow_references(data, where)
    return value, size


def follow_references(data: bytes, where: str) -> tuple[Any, int, list[Reference]]:
    """The same, with everything that the pickle says lies outside it."""
    machine = _Machine(where)
    try:
        for count, (operation, argument, position) in enumerate(pickletools.genops(io.BytesIO(data))):
            if operation.name == "STOP":
                return machine.stack.pop(), (position or 0) + 1, machine.references
            if count > _MOST_STEPS:
                raise damaged(f"the pickle takes more than {_MOST_STEPS} steps", where)
            machine.step(operation.name, argument)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError) as error:
        raise damaged(f"the pickle is not understood: {error}", where) from error
    raise damaged("the pickle is cut off", where)


def _full_name(function: Any) -> str:
    return str(function) if isinstance(function, Name) else ""


def _call(function: Any, arguments: Any) -> Any:
    name = _full_name(function)
    if name != "collections.OrderedDict" or not isinstance(arguments, tuple):
        return Note(name, arguments)
    found: dict[str, Any] = {}
    for key, value in arguments[0] if arguments else ():
        if not isinstance(key, str):
            raise TypeError(f"a {type(key).__name__} is a key")
        found[key] = value
    return found
