"""Ask: call a method of a role through its handle, with types that mypy checks."""

from collections.abc import Callable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from drl_cli.runtime.place.handles import Handle, Ref

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


def ask(handle: Handle[R], method: Callable[Concatenate[R, P], T], *args: P.args, **kwargs: P.kwargs) -> Ref[T]:
    """Call a method of a role, for example `ask(server, ServerRole.push, header, params)`.

    Return a reference to the result. Arguments are positional. A role receives the value of a reference among the
    arguments: `cast(Array, params)` gives the reference `params` the type that mypy expects.
    """
    assert not kwargs
    ref: Ref[T] = handle.call(method.__name__, *args)
    return ref


@overload
def ask_parts(
    handle: Handle[R],
    num: Literal[2],
    method: Callable[Concatenate[R, P], tuple[A, B]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> tuple[Ref[A], Ref[B]]: ...


@overload
def ask_parts(
    handle: Handle[R],
    num: Literal[4],
    method: Callable[Concatenate[R, P], tuple[A, B, C, D]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> tuple[Ref[A], Ref[B], Ref[C], Ref[D]]: ...


def ask_parts(
    handle: Handle[R], num: int, method: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Ref[Any], ...]:
    """Call a method that returns a tuple of `num` parts. Return a reference to each part, as `ask` does."""
    assert not kwargs
    return tuple(handle.call(method.__name__, *args, results=num))


def ask_many(
    handle: Handle[R], num: int, method: Callable[Concatenate[R, P], tuple[T, ...]], *args: P.args, **kwargs: P.kwargs
) -> tuple[Ref[T], ...]:
    """Call a method that returns a tuple of any length, here `num`, as `ask_parts` does."""
    assert not kwargs
    return tuple(handle.call(method.__name__, *args, results=num))
