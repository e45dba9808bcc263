"""The language in which a policy says which calls it asks about: `amount > 100 and currency in ["EUR", "USD"]`.

An expression is compiled once (`compile_expression`) and evaluated over one payload. It has comparisons, `and`, `or`, `not`,
`in`, arithmetic, dotted fields (`customer.country`, `lines.0.price`), text, numbers (exact decimals), lists, `true`, `false` and
`null`. It has no calls, no loops and no names but the payload's fields, so evaluating takes at most one step for each of its
parts.

What cannot be compared is an error and not "false": whoever evaluates an expression that guards something asks people then.
"""

import operator
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from typing import Any

MAX_LENGTH = 1_000
"""Characters of an expression."""
MAX_PARTS = 200
MAX_DEPTH = 20
MAX_DIGITS = 40
MAX_ITEMS = 10_000
"""Entries of a payload's list that `in` looks through."""

#: Rounds to 50 digits; what goes beyond these exponents is an error, so that no number grows without bound.
_ARITHMETIC = Context(prec=50, Emax=6_000, Emin=-6_000, traps=[DivisionByZero, InvalidOperation, Overflow])

#: Truth values, numbers, text and lists as they come out of an evaluation; a mapping is only a step on the way to a field.
Value = bool | Decimal | str | None | Sequence[Any] | Mapping[str, Any]


class ExpressionError(ValueError):
    """The expression says nothing that can be evaluated; `position` counts characters from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.message, self.position = message, position


class EvaluationError(ValueError):
    """The expression cannot be decided on this payload."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?![\w.]))
    |(?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
    |(?P<field>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+))*)
    |(?P<sign>==|!=|<=|>=|[<>()\[\],+\-*/%])""",
    re.VERBOSE | re.ASCII,
)
_WORDS = {"and", "or", "not", "in", "true", "false", "null"}
#: What people write who come from elsewhere, and what it is called here.
_INSTEAD = {"=": "==", "&": "and", "|": "or", "!": "not", "<>": "!="}


def _tokens(source: str) -> Iterator[_Token]:
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise ExpressionError(_unknown(source, at), at)
        kind, text = str(found.lastgroup), found[0]
        if kind == "field" and text in _WORDS:
            kind = "word"
        if kind == "number" and len(text.replace(".", "")) > MAX_DIGITS:
            raise ExpressionError(f"a number has at most {MAX_DIGITS} digits", at)
        if kind != "space":
            yield _Token(kind, text, at)
        at = found.end()
    yield _Token("end", "", len(source))


def _unknown(source: str, at: int) -> str:
    sign = source[at]
    if sign in "\"'":
        return (
            "this text is not closed, or holds a backslash before something else than a quote or a backslash"
        )
    if sign in _INSTEAD:
        return f"“{sign}” is unknown; did you mean “{_INSTEAD[sign]}”?"
    if sign.isascii() and sign.isdigit():
        return "this is no number; write it as 1234.56"
    return f"“{sign}” is unknown" if sign.isprintable() else f"the character U+{ord(sign):04X} is unknown"


# --- what an expression is made of ---------------------------------------------------------------------------------------

type Payload = Mapping[str, Any]
type _Part = Callable[[Payload], Value]


@dataclass(frozen=True)
class Expression:
    """A compiled expression. `fields` are the dotted names that it reads, in order, each once."""

    source: str
    fields: tuple[str, ...]
    _part: _Part

    def holds(self, payload: Any) -> bool:
        """Whether it is true of this (decoded) payload.

        A field that the payload does not have is `null`. Raises EvaluationError where it cannot be decided: a comparison of
        different types, with nothing, or a result that is neither true nor false.
        """
        if not isinstance(payload, Mapping):
            raise EvaluationError("the payload has no fields")
        return _truth(self._part(payload), "the expression")


def compile_expression(source: str) -> Expression:
    """Raises ExpressionError with the position of the mistake."""
    if len(source) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH:,} characters", MAX_LENGTH)
    return _Parser(source).whole()


class _Parser:
    """Recursive descent; each method takes the tokens of one level of precedence, the loosest first."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = list(_tokens(source))
        self.at = self.depth = 0
        self.fields: dict[str, None] = {}
        if len(self.tokens) > MAX_PARTS:
            raise ExpressionError(
                f"an expression has at most {MAX_PARTS} parts", self.tokens[MAX_PARTS].position
            )

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def whole(self) -> Expression:
        part = self.either()
        if self.token.kind != "end":
            raise self.unexpected("the end, or “and” or “or”")
        return Expression(self.source, tuple(self.fields), part)

    def take(self, *texts: str) -> str:
        """The next token's text if it is one of these signs or words, which is then consumed; "" otherwise."""
        if self.token.kind in ("sign", "word") and self.token.text in texts:
            self.at += 1
            return self.tokens[self.at - 1].text
        return ""

    def unexpected(self, wanted: str) -> ExpressionError:
        found = f"“{self.token.text}”" if self.token.kind != "end" else "the end"
        return ExpressionError(f"expected {wanted}, found {found}", self.token.position)

    def either(self) -> _Part:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"parentheses nest at most {MAX_DEPTH} levels deep", self.token.position)
        part = self.both()
        while self.take("or"):
            part = _or(part, self.both())
        self.depth -= 1
        return part

    def both(self) -> _Part:
        part = self.negated()
        while self.take("and"):
            part = _and(part, self.negated())
        return part

    def negated(self) -> _Part:
        count = 0
        while self.take("not"):
            count += 1
        part = self.comparison()
        return part if not count else _not(part, odd=count % 2 == 1)

    def comparison(self) -> _Part:
        left, sign = self.sum(), self.comparing()
        if not sign:
            return left
        part = _compare(sign, left, self.sum())
        if self.comparing():
            raise ExpressionError(
                "comparisons do not chain: join them with “and”", self.tokens[self.at - 1].position
            )
        return part

    def comparing(self) -> str:
        if self.token.text == "not" and self.tokens[self.at + 1].text == "in":
            self.at += 2
            return "not in"
        return self.take("==", "!=", "<", "<=", ">", ">=", "in")

    def sum(self) -> _Part:
        part = self.product()
        while sign := self.take("+", "-"):
            part = _calculate(sign, part, self.product())
        return part

    def product(self) -> _Part:
        part = self.signed()
        while sign := self.take("*", "/", "%"):
            part = _calculate(sign, part, self.signed())
        return part

    def signed(self) -> _Part:
        count = 0
        while self.take("-"):
            count += 1
        part = self.value()
        return part if not count else _negative(part, odd=count % 2 == 1)

    def value(self) -> _Part:
        token = self.token
        if self.take("("):
            part = self.either()
            if not self.take(")"):
                raise self.unexpected("“)”")
            return part
        if self.take("["):
            return self.list()
        if token.kind not in ("number", "text", "field") and token.text not in ("true", "false", "null"):
            raise self.unexpected("a field, a number, “text” or “(”")
        self.at += 1
        match token.kind:
            case "number":
                return _constant(Decimal(token.text))
            case "text":
                return _constant(re.sub(r"\\(.)", r"\1", token.text[1:-1]))
            case "word":
                return _constant({"true": True, "false": False}.get(token.text))
        self.fields[token.text] = None
        return _field(token.text)

    def list(self) -> _Part:
        items: list[_Part] = []
        while not self.take("]"):
            if items and not self.take(","):
                raise self.unexpected("“,” or “]”")
            items.append(self.sum())
        return lambda payload: [item(payload) for item in items]


# --- what the parts do -----------------------------------------------------------------------------------------------------


def _constant(value: Value) -> _Part:
    return lambda payload: value


def _field(name: str) -> _Part:
    path = name.split(".")

    def read(payload: Payload) -> Value:
        found: Any = payload
        for step in path:
            if isinstance(found, Mapping):
                found = found.get(step)
            elif isinstance(found, list | tuple) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return _plain(found, name)

    return read


def _plain(value: Any, name: str) -> Value:
    """A decoded value of a payload as one of the language's own types: dates and ids are text, spans are seconds."""
    match value:
        case None | bool() | str() | Decimal():
            return value
        case int():
            return Decimal(value)
        case float():
            return Decimal(repr(value))
        case date():
            return value.isoformat()
        case timedelta():
            return Decimal(value // timedelta(microseconds=1)).scaleb(-6)
        case uuid.UUID():
            return str(value)
        case list() | tuple() | Mapping():
            return value
    raise EvaluationError(f"{name} is of a type that cannot be compared")


def _kind(value: Value) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case Decimal():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "a group of fields"
    return "a list"


def _truth(value: Value, what: str) -> bool:
    if isinstance(value, bool):
        return value
    raise EvaluationError(f"{what} is {_kind(value)}, which is neither true nor false")


def _and(left: _Part, right: _Part) -> _Part:
    return lambda payload: (
        _truth(left(payload), "a side of “and”") and _truth(right(payload), "a side of “and”")
    )


def _or(left: _Part, right: _Part) -> _Part:
    return lambda payload: _truth(left(payload), "a side of “or”") or _truth(right(payload), "a side of “or”")


def _not(part: _Part, *, odd: bool) -> _Part:
    return lambda payload: _truth(part(payload), "what follows “not”") != odd


def _negative(part: _Part, *, odd: bool) -> _Part:
    def negative(payload: Payload) -> Value:
        number = _number(part(payload), "-")
        return _ARITHMETIC.minus(number) if odd else number

    return negative


def _number(value: Value, sign: str) -> Decimal:
    if isinstance(value, Decimal):
        return value
    raise EvaluationError(f"“{sign}” needs numbers, and this is {_kind(value)}")


_CALCULATE: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _ARITHMETIC.add,
    "-": _ARITHMETIC.subtract,
    "*": _ARITHMETIC.multiply,
    "/": _ARITHMETIC.divide,
    "%": _ARITHMETIC.remainder,
}


def _calculate(sign: str, left: _Part, right: _Part) -> _Part:
    def calculate(payload: Payload) -> Value:
        one, other = _number(left(payload), sign), _number(right(payload), sign)
        try:
            return _CALCULATE[sign](one, other)
        except DecimalException as error:
            what = "a division by zero" if other.is_zero() else "a number beyond all bounds"
            raise EvaluationError(f"“{sign}” leads to {what}") from error

    return calculate


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(sign: str, left: _Part, right: _Part) -> _Part:
    def compare(payload: Payload) -> Value:
        one, other = left(payload), right(payload)
        if sign in _ORDER:
            if isinstance(one, Decimal) and isinstance(other, Decimal):
                return _ORDER[sign](one, other)
            if isinstance(one, str) and isinstance(other, str):
                return _ORDER[sign](one, other)
            raise EvaluationError(f"“{sign}” cannot compare {_kind(one)} with {_kind(other)}")
        if sign in ("==", "!="):
            return _equal(one, other, sign) == (sign == "==")
        return _within(one, other) == (sign == "in")

    return compare


def _equal(one: Value, other: Value, sign: str) -> bool:
    for value in (one, other):
        if isinstance(value, list | tuple | Mapping):
            raise EvaluationError(f"“{sign}” cannot compare {_kind(value)}")
    if one is None or other is None:
        return one is other
    if _kind(one) != _kind(other):
        # "180.00" == 180 would be false for good, and nobody would ever be asked.
        raise EvaluationError(f"“{sign}” cannot compare {_kind(one)} with {_kind(other)}")
    return one == other


def _within(one: Value, other: Value) -> bool:
    if isinstance(other, str):
        if isinstance(one, str):
            return one in other
        raise EvaluationError(f"“in” looks for text in text, and this is {_kind(one)}")
    if not isinstance(other, list | tuple):
        raise EvaluationError(f"“in” needs a list or text behind it, and this is {_kind(other)}")
    if len(other) > MAX_ITEMS:
        raise EvaluationError(f"“in” looks through at most {MAX_ITEMS:,} entries")
    return any(_equal(one, _plain(item, "an entry of the list"), "in") for item in other)
