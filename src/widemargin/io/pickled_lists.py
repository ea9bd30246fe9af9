"""Pickles of lists, tuples, bytes, words, numbers and booleans, read without `pickle`: nothing is imported or called.

A pickle is a program for a small machine with a stack. Python's own machine calls whatever the program names; this one
knows the instructions that build plain values, of protocols 1 to 5, and refuses every other one in one line. Of NumPy
it knows how arrays of bytes and booleans are written, recognises exactly that, and keeps their bytes. Bytes stay where
they are in the file: a value is where they begin and how many they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .errors import InputError, shorten

_MAX_STACK = 1 << 22  # values
_MAX_WORD_BYTES = 1 << 16
_MAX_GLOBAL_BYTES = 256


class ByteSpan(NamedTuple):
    """Position and length of a bytes object in the pickle."""

    offset: int
    size: int


PlainValue: TypeAlias = "ByteSpan | str | int | float | bool | list[Any] | tuple[Any, ...] | None"


class _Name(NamedTuple):
    """A function or class that a pickle names; it is compared, never looked up."""

    module: str
    name: str


class _Array:
    """A NumPy array while it is built: dtype and bytes come with its state."""

    def __init__(self) -> None:
        self.dtype, self.shape, self.data = "", tuple[int, ...](), ByteSpan(0, 0)


class _Dtype(NamedTuple):
    code: str


_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUFFER_MODULES = ("numpy.core.numeric", "numpy._core.numeric")
_PLAIN_DTYPES = {"u1": 1, "b1": 1, "|u1": 1, "|b1": 1, "i1": 1}
_MARK = object()


def read_pickled_lists(data: bytes, where: str) -> PlainValue:
    """The value of a pickle; arrays of bytes are their `ByteSpan`, single booleans of NumPy are booleans."""
    try:
        return _Machine(data, where).run()
    except (struct.error, IndexError, UnicodeDecodeError):
        raise InputError(f"{where}: damaged or truncated pickle") from None


class _Machine:
    """Runs the instructions of a pickle that build plain values."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.place = data, where, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> PlainValue:
        while True:
            code = self._take(1)
            if code == b".":
                if len(self.stack) != 1 or self.stack[0] is _MARK:
                    raise self._damage_error()
                return _finish(self.stack[0], self.where)
            step = _STEPS.get(code)
            if step is None:
                raise InputError(
                    f"{self.where}: pickle with something other than lists of bytes and booleans, at byte "
                    f"{self.place - 1:,}"
                )
            step(self)
            if len(self.stack) > _MAX_STACK:
                raise self._damage_error()

    def _damage_error(self) -> InputError:
        return InputError(f"{self.where}: damaged pickle, near byte {self.place:,}")

    def _take(self, count: int) -> bytes:
        found = self.data[self.place : self.place + count]
        if len(found) < count:
            raise self._damage_error()
        self.place += count
        return found

    def number(self, layout: str) -> int:
        """A number of the program."""
        value: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return value

    def push_span(self, layout: str) -> None:
        """Bytes, after a number that says how many."""
        size = self.number(layout)
        if not 0 <= size <= len(self.data) - self.place:
            raise self._damage_error()
        self.stack.append(ByteSpan(self.place, size))
        self.place += size

    def push_word(self, layout: str) -> None:
        """Push a string that is preceded by its length in bytes."""
        size = self.number(layout)
        if not 0 <= size <= _MAX_WORD_BYTES:
            raise self._damage_error()
        self.stack.append(self._take(size).decode("utf-8", "surrogatepass"))

    def push_global(self) -> None:
        """Module and name, a line each."""
        words = []
        for _ in range(2):
            end = self.data.find(b"\n", self.place, self.place + _MAX_GLOBAL_BYTES)
            if end < 0:
                raise self._damage_error()
            words.append(self._take(end - self.place).decode("utf-8"))
            self.place += 1
        self.stack.append(self._check_name(_Name(*words)))

    def push_stack_global(self) -> None:
        """Module and name from the stack."""
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise self._damage_error()
        self.stack.append(self._check_name(_Name(module, name)))

    def _check_name(self, name: _Name) -> _Name:
        known = {_Name("numpy", "ndarray"), _Name("numpy", "dtype")}
        known |= {_Name(module, word) for module in _ARRAY_MODULES for word in ("_reconstruct", "scalar")}
        known |= {_Name(module, "_frombuffer") for module in _BUFFER_MODULES}  # of protocol 5
        if name not in known:
            said = shorten(f"{name.module}.{name.name}", 100)
            raise InputError(f"{self.where}: pickle that imports {said!r}; only lists of bytes and booleans are read")
        return name

    def pop(self) -> Any:
        """The last value, which is no mark."""
        value = self.stack.pop()
        if value is _MARK:
            raise self._damage_error()
        return value

    def pop_to_mark(self) -> list[Any]:
        """The values after the last mark."""
        found = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def extend(self, values: list[Any]) -> None:
        """Append values to the list below them."""
        target = self.stack[-1]
        if not isinstance(target, list) or any(value is target for value in values):
            raise self._damage_error()
        target.extend(values)

    def push_tuple(self, count: int) -> None:
        """A tuple of the last values."""
        values = [self.pop() for _ in range(count)][::-1]
        self.stack.append(tuple(values))

    def reduce(self) -> None:
        """A NumPy array, dtype or boolean in the one way that NumPy writes each."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise self._damage_error()
        if function.name == "_reconstruct" and arguments and arguments[0] == _Name("numpy", "ndarray"):
            self.stack.append(_Array())
            return
        if function.name == "_frombuffer" and len(arguments) == 4:
            data, dtype, shape, _ = arguments
            self.stack.append(_Array())
            self.stack.append((1, shape, dtype, False, data))
            self.build()
            return
        if function == _Name("numpy", "dtype") and arguments and self._text(arguments[0]) in _PLAIN_DTYPES:
            self.stack.append(_Dtype(self._text(arguments[0])))
            return
        if function.name == "scalar" and len(arguments) == 2 and isinstance(arguments[0], _Dtype):
            byte = self._bytes(arguments[1])
            if len(byte) == 1:
                self.stack.append(bool(byte[0]) if arguments[0].code.endswith("b1") else byte[0])
                return
        raise InputError(f"{self.where}: pickle of NumPy values that are neither bytes nor booleans; not read")

    def build(self) -> None:
        """The state of an array or dtype."""
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, _Dtype):
            return  # byte order and the like: a dtype of one byte has none
        if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
            raise self._damage_error()
        _, shape, dtype, _, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple) or len(shape) != 1:
            raise InputError(f"{self.where}: pickle of NumPy arrays that are not rows of bytes; not read")
        if not isinstance(data, ByteSpan) or shape != (data.size,):
            raise self._damage_error()
        target.dtype, target.shape, target.data = dtype.code, shape, data

    def _bytes(self, value: Any) -> bytes:
        if isinstance(value, ByteSpan):
            return self.data[value.offset : value.offset + value.size]
        return value.encode("latin-1") if isinstance(value, str) and len(value) == 1 and ord(value) < 256 else b""

    def _text(self, value: Any) -> str:
        """A short word, also where Python 2 wrote it as bytes."""
        if isinstance(value, ByteSpan) and value.size <= 8:
            return self._bytes(value).decode("ascii", "replace")
        return value if isinstance(value, str) else ""


def _finish(value: Any, where: str) -> PlainValue:
    """The value without the machine's own kinds; two levels of lists are enough for every file that is read."""
    if not isinstance(value, list | tuple) or isinstance(value, ByteSpan):
        return _to_plain(value, where)
    parts = [
        [_to_plain(item, where) for item in part]
        if isinstance(part, list | tuple) and not isinstance(part, ByteSpan)
        else _to_plain(part, where)
        for part in value
    ]
    return tuple(parts) if isinstance(value, tuple) else parts


def _to_plain(item: Any, where: str) -> PlainValue:
    if isinstance(item, _Array):
        return item.data
    if isinstance(item, _Name | _Dtype) or item is _MARK:
        raise InputError(f"{where}: pickle with something other than lists of bytes and booleans; not read")
    plain: PlainValue = item
    return plain


def _put(machine: _Machine, key: int) -> None:
    machine.memo[key] = machine.stack[-1]


def _get(machine: _Machine, key: int) -> None:
    if key not in machine.memo:
        raise machine._damage_error()
    machine.stack.append(machine.memo[key])


def _skip(machine: _Machine, count: int) -> None:
    machine._take(count)


def _read_long(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine._take(machine.number("<B")), "little", signed=True))


_STEPS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: _skip(m, 1),  # PROTO
    b"\x95": lambda m: _skip(m, 8),  # FRAME
    b"(": lambda m: m.stack.append(_MARK),
    b"]": lambda m: m.stack.append([]),
    b")": lambda m: m.stack.append(()),
    b"t": lambda m: m.stack.append(tuple(m.pop_to_mark())),
    b"l": lambda m: m.stack.append(m.pop_to_mark()),
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"a": lambda m: m.extend([m.pop()]),
    b"e": lambda m: m.extend(m.pop_to_mark()),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"\x8a": _read_long,
    b"G": lambda m: m.stack.append(m.number(">d")),
    b"C": lambda m: m.push_span("<B"),  # bytes
    b"B": lambda m: m.push_span("<I"),
    b"\x8e": lambda m: m.push_span("<Q"),
    b"\x96": lambda m: m.push_span("<Q"),  # bytearray
    b"U": lambda m: m.push_span("<B"),  # str of Python 2
    b"T": lambda m: m.push_span("<i"),
    b"\x8c": lambda m: m.push_word("<B"),  # str
    b"X": lambda m: m.push_word("<I"),
    b"q": lambda m: _put(m, m.number("<B")),
    b"r": lambda m: _put(m, m.number("<I")),
    b"\x94": lambda m: _put(m, len(m.memo)),
    b"h": lambda m: _get(m, m.number("<B")),
    b"j": lambda m: _get(m, m.number("<I")),
    b"c": lambda m: m.push_global(),
    b"\x93": lambda m: m.push_stack_global(),
    b"R": lambda m: m.reduce(),
    b"b": lambda m: m.build(),
}
