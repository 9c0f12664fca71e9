"""Checks of the arguments that an embedding program passes.

A value of a wrong type would otherwise be found when it is encoded for the journal, and a journal that cannot be
written ends every session.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Sequence
from functools import partial

from supervisor.lifecycles.types import DeliveryPoint, InvalidArgument


def check_text(field: str, text: str) -> None:
    """Raise InvalidArgument unless *text* can be encoded as UTF-8, as the journal needs: half a surrogate pair
    cannot."""
    check_type(field, text, str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{field}: character {error.start} is half a surrogate pair; give valid Unicode text"
        ) from None


def check_type(field: str, value: object, *wanted: type | str) -> None:
    """Raise TypeError unless *value* has one of the types *wanted*. A bool does not count as a number. A str among
    *wanted* names something else that the caller accepts."""
    types = tuple(one for one in wanted if isinstance(one, type))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        names = [one if isinstance(one, str) else one.__name__ for one in wanted]
        allowed = " or ".join(one if " " in one else f"{'an' if one[0] in 'AEIOaeio' else 'a'} {one}" for one in names)
        raise TypeError(f"{field}: {reprlib.repr(value)} is of type {type(value).__name__}; give {allowed}")


def check_types(*wanted: type, **given: object) -> None:
    """Check the type of each argument that is not None."""
    for field, value in given.items():
        if value is not None:
            check_type(field, value, *wanted)


def check_range(
    field: str, value: float | None, wanted: str, is_in_range: Callable[[float], bool], *types: type
) -> None:
    """Raise TypeError unless *value* is None or has one of the *types*, and InvalidArgument unless it is in its range,
    which *wanted* names."""
    if value is not None:
        check_type(field, value, *types)
        if not is_in_range(value):
            raise InvalidArgument(f"{field}: {value!r} is out of range; give {wanted}")


def check_agent_function(field: str, function: object) -> None:
    """Raise TypeError if it is known without a call that *function* cannot be an in-process agent.

    A function without ``async`` may return an awaitable, unless its annotation names another result.
    """
    if not callable(function) or isinstance(function, type):
        fix = "give the function itself, neither a class nor the result of a call"
        raise TypeError(f"{field}: {function!r} is neither the name of a configured agent nor an async function; {fix}")
    inner: Callable[..., object] = function
    while isinstance(inner, partial):
        inner = inner.func
    code = inner if inspect.isroutine(inner) else type(inner).__call__
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    fix = "define it as 'async def', with one parameter, its turn, and return the agent's text"
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except ValueError:  # a function in C may have no signature
        return
    except TypeError as error:
        raise TypeError(f"{field}: {name} cannot be called with one argument ({error}); {fix}") from None
    returns_text = signature.return_annotation in (str, "str", None, "None")
    is_plain = returns_text and not inspect.iscoroutinefunction(inspect.unwrap(code))
    if is_plain or inspect.isasyncgenfunction(code):
        raise TypeError(f"{field}: {name} is no async function that returns once; {fix}")


def check_items(field: str, values: Sequence[object], wanted: type) -> None:
    """Raise TypeError unless *values* is a sequence of *wanted*. A str does not count as a sequence."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        check_type(field, values, f"a list of {wanted.__name__}")
    for number, value in enumerate(values):
        check_type(f"{field}[{number}]", value, wanted)


def check_name(name: str) -> None:
    check_type("name", name, str)
    bad = [char for char in name if not (char.isalnum() or char in "._-")]
    if not name or bad or len(name) > 64:
        raise InvalidArgument(
            f"name: {name!r} cannot be a session's name; use up to 64 letters, digits, '.', '_' and '-'"
        )


def delivery_point(urgent: bool, at: DeliveryPoint | str | None) -> DeliveryPoint:
    """Return the delivery point of an urgent message: *at*; by default, the message is delivered at once."""
    try:
        point = DeliveryPoint.NOW if at is None else DeliveryPoint(at)
    except ValueError:
        known = ", ".join(DeliveryPoint)
        raise InvalidArgument(f"at: {at!r} is no delivery point of an urgent message; allowed: {known}") from None
    if at is not None and not urgent:
        raise InvalidArgument(
            f"at: {point} is for urgent messages only; make it urgent, or leave it for the next prompt"
        )
    return point
