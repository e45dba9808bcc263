"""Verbs that a policy may want other people to approve first.

`approvals` registers the one hook; `runs` never imports it. A guarded verb asks the hook before anything else; the hook returns,
and the verb goes on, or it opens a request for others and raises `Asked`: nothing is done until they have approved, and then
`carry_out` calls the same verb with the arguments that were frozen.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from runs.lifecycle import Actor


class Hook(Protocol):
    def __call__(self, actor: Actor, verb: str, function: str, arguments: Mapping[str, Any], /) -> None:
        """Return if the verb may go on. `arguments` are those that were given, by name.

        Raises Asked where others are asked instead, and any other VerbError where the verb would be refused anyway.
        """
        ...


_hooks: list[Hook] = []
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_VERBS: dict[str, set[str]] = {}


def register(hook: Hook) -> None:
    if hook not in _hooks:
        _hooks.append(hook)


def guarded[**P, R](verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let policies guard this function under the name `verb`; its first argument is the actor."""

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        name = function.__name__

        @functools.wraps(function)
        def asked_first(*args: P.args, **kwargs: P.kwargs) -> R:
            given = dict(signature.bind(*args, **kwargs).arguments)
            for parameter in signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    given |= given.pop(parameter.name, {})
            actor = given.pop("actor")
            for hook in _hooks:
                hook(actor, verb, name, given)
            return function(*args, **kwargs)

        _FUNCTIONS[name] = asked_first
        _VERBS.setdefault(verb, set()).add(name)
        return asked_first

    return declare


def verbs() -> Mapping[str, set[str]]:
    """Names of the functions behind each verb that can be guarded."""
    return _VERBS


def carry_out(actor: Actor, function: str, arguments: Mapping[str, Any]) -> Any:
    """Call a guarded verb for the request that `actor.request` names; what it returns. Raises as the verb does."""
    return _FUNCTIONS[function](actor, **arguments)
