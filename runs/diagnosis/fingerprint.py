"""What makes two failures the same: an error's text with everything folded away that differs from run to run.

The fingerprint is made of workflow, version, step, type of error and folded text; the signature leaves the version out. Both
are stored: what is folded here must stay as it is, or the same failure gets a second group after an update.
"""

import hashlib
import re
import uuid
from dataclasses import dataclass

#: Characters of an error that count. Errors may be whole pages of HTML, and begin with what matters.
LOOKED_AT = 2000
#: Characters of the folded text that are kept.
KEPT = 300

_QUOTED = (
    r"""'(?:[^'\\\n]|\\.){0,300}'|"(?:[^"\\\n]|\\.){0,300}"|“[^”\n]{0,300}”|‘[^’\n]{0,300}’|`[^`\n]{0,300}`"""
)

#: In this order: what contains something else is folded first.
_FOLDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>“”‘’`]+", re.I), "<url>"),
    (re.compile(r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"), "<email>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I), "<id>"),
    (
        re.compile(
            r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT)\b|[+-]\d{2}:?\d{2}\b)?)?",
            re.I,
        ),
        "<time>",
    ),
    (re.compile(r"\b\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\b"), "<time>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    # A quoted name with an underscore is a field of the code: KeyError: 'approver_group'.
    (re.compile(rf"(?<!\w)(?!'[a-z]+(?:_[a-z]+)+')(?:{_QUOTED})(?!\w)"), "<text>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "<n>"),
    # At least one digit: “defaced” is a word. As a number: a hash may happen to have digits alone.
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,}\b", re.I), "<n>"),
    # Words of providers with a number in them: ord_1042, ch-3Mmlr2, A-17, page12.
    (re.compile(r"\b[A-Za-z]+(?:[_-][A-Za-z0-9]+)*[_-]?\d[\w-]*"), "<id>"),
    (re.compile(r"[+-]?\d+(?:[.,_]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
#: A repeated fold says no more than one: the length of a list must not make another group.
_REPEATED = re.compile(r"(<(?:id|text|url|email|time|address)>)(?:[,;]? ?\1)+|(?<=[\[({])(<n>)(?:[,;]? ?\2)+")
#: Three digits right after these are what an error is, not which run it hit.
_STATUS_CODE = re.compile(
    r"\b(?:HTTP(?:/\S{1,5})?|status(?: code)?|answered|error)[ :=]{1,2}([1-5]\d\d)\b", re.I
)
_LEADING_CODE = re.compile(r"^(?:\w+: )?([1-5]\d\d)(?= )")

#: What follows this in the text of `Rejected` is a person's name and reason.
VERDICT = re.compile(r"\b(rejected|expired) by .*", re.DOTALL)


def folded(text: str) -> str:
    """The error's text as one line, with numbers, ids, quoted text, addresses and times folded away; status codes stay.

    Folding what is folded changes nothing.
    """
    text = text[:LOOKED_AT].strip()
    codes = sorted(match.span(1) for one in (_STATUS_CODE, _LEADING_CODE) for match in one.finditer(text))
    parts, at = [], 0
    for begin, end in codes:
        if begin >= at:
            parts += [_fold(text[at:begin]), text[begin:end]]
            at = end
    parts.append(_fold(text[at:]))
    whole = _REPEATED.sub(r"\1\2", "".join(parts).strip())
    return whole if len(whole) <= KEPT else whole[: KEPT - 1].rstrip() + "…"


def _fold(text: str) -> str:
    for pattern, instead in _FOLDS:
        text = pattern.sub(instead, text)
    return text


@dataclass(frozen=True)
class Mark:
    """What a failure is told by."""

    sort: str
    workflow: str
    version: int
    step: str
    error_type: str
    message: str
    """Folded."""

    @property
    def signature(self) -> uuid.UUID:
        return _hash(self.sort, self.workflow, self.step, self.error_type, self.message)

    @property
    def fingerprint(self) -> uuid.UUID:
        return _hash(self.sort, self.workflow, self.step, self.error_type, self.message, str(self.version))


def _hash(*parts: str) -> uuid.UUID:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return uuid.UUID(bytes=hashlib.sha256(text.encode(errors="backslashreplace")).digest()[:16])
