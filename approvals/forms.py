"""Forms of the verbs on approvals; the one that edits a payload is made from its JSON Schema."""

import json
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import jsonschema
from django import forms
from pydantic import ValidationError as ArgumentsError

from approvals import waits
from approvals.decision import field_order
from approvals.models import Approval, Vote
from approvals.payload import Field, Kind, Row, fields, rows
from approvals.services import tool_of, validated
from runs import codec, redaction
from runs.errors import Invalid
from runs.services.payloads import parse_json, recordable

REASON_LENGTH = 2_000
#: Of a number that somebody types.
DIGITS = 4_300


class ReasonedForm(forms.Form):
    """A verdict, and its reason; a rejection wants one."""

    verdict = forms.ChoiceField(choices=Vote.Verdict)
    reason = forms.CharField(required=False, max_length=REASON_LENGTH)

    unreasoned = "Say why you reject it: the agent and whoever asked for it will read this."

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("verdict") == Vote.Verdict.REJECT and not cleaned.get("reason"):
            self.add_error("reason", self.unreasoned)
        return cleaned


class VerdictForm(ReasonedForm):
    """Approve or reject what the page showed: its version and its digest."""

    version = forms.IntegerField(min_value=1, widget=forms.HiddenInput)
    digest = forms.CharField(max_length=64, widget=forms.HiddenInput)

    field_order = ("version", "digest", "verdict", "reason")


class AskForm(forms.Form):
    """Ask back about what the page showed; shares its field with the verdicts."""

    version = forms.IntegerField(min_value=1, widget=forms.HiddenInput)
    digest = forms.CharField(max_length=64, widget=forms.HiddenInput)
    token = forms.UUIDField(widget=forms.HiddenInput)
    reason = forms.CharField(max_length=REASON_LENGTH)


class EditForm(forms.Form):
    """The payload's fields, each as its schema wants it; a field that is left alone keeps its value exactly.

    `cleaned_data["arguments"]` is what the verb takes.
    """

    version = forms.IntegerField(min_value=1, widget=forms.HiddenInput)
    reason = forms.CharField(
        label="Why you change it",
        required=False,
        max_length=REASON_LENGTH,
        help_text="Written to the run's history with your name.",
    )

    def __init__(self, approval: Approval, data: Any = None) -> None:
        super().__init__(data, initial={"version": approval.version}, label_suffix="")
        self.approval = approval
        self.base = waits.true_arguments(approval)
        every = fields(approval.schema, self.base, field_order(tool_of(approval)))
        self.fixed = [field for field in every if field.read_only and field.present]
        self.offered = {f"payload-{n}": field for n, field in enumerate(every) if not field.read_only}
        for name, field in self.offered.items():
            self.fields[name] = _form_field(field)

    @property
    def payload_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.offered]

    @property
    def changes(self) -> list[Row]:
        """What the typed payload would change, field by field. Only after `is_valid`."""
        shown, _ = redaction.split(validated(self.approval, self.cleaned_data["arguments"]))
        order = field_order(tool_of(self.approval))
        beside = rows(self.approval.schema, shown, self.approval.payload, order)
        return [row for row in beside if row.change]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        edited: dict[str | None, Any] = dict(self._edited(cleaned))
        if self.errors:
            return cleaned
        if None in edited:
            cleaned["arguments"] = edited[None]
        else:
            kept = {key: value for key, value in codec.decode(self.base).items() if key not in self._keys}
            cleaned["arguments"] = kept | edited
        self._say(mistakes(self.approval, cleaned["arguments"]))
        return cleaned

    @property
    def _keys(self) -> set[str | None]:
        return {field.key for field in self.offered.values()}

    def _edited(self, cleaned: dict[str, Any]) -> Iterator[tuple[str | None, Any]]:
        """(key, value) of each field; what was emptied and may be absent is left out."""
        for name, field in self.offered.items():
            if not self.fields[name].has_changed(_shown(field), self.data.get(name)):
                if field.present:
                    yield field.key, codec.decode(field.value)
                continue
            value = cleaned[name]
            if value is None or value == "":
                if field.nullable:
                    yield field.key, None
                elif field.kind == Kind.TEXT and (field.present or field.required):
                    yield field.key, ""
                elif field.required:
                    self.add_error(name, "This is needed.")
                continue
            yield field.key, _typed(field, value)

    def _say(self, found: list[tuple[str | None, str]]) -> None:
        names = {field.key: name for name, field in self.offered.items()}
        for key, message in found:
            self.add_error(names.get(key), message)


def mistakes(approval: Approval, arguments: Any) -> list[tuple[str | None, str]]:
    """(field, message) of everything that the tool's arguments or the schema refuse; field None: the whole."""
    tool = tool_of(approval)
    if tool is not None:
        try:
            tool.arguments.model_validate(arguments)
        except ArgumentsError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            return [_mistake([*one["loc"]], one["msg"]) for one in found]
        return []
    try:
        plain = codec.plain(recordable(arguments, "the payload", "arguments"))
    except Invalid as error:
        return [(None, str(error))]
    wrong = jsonschema.Draft202012Validator(approval.schema).iter_errors(plain)
    return [_mistake([*one.absolute_path], one.message) for one in wrong]


def _mistake(path: list[str | int], message: str) -> tuple[str | None, str]:
    if not path:
        return None, message
    rest = ".".join(str(part) for part in path[1:])
    return str(path[0]), f"{rest}: {message}" if rest else message


class _Text(forms.CharField):
    """Text as it was typed; browsers send line breaks as CR LF."""

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value) or "").replace("\r\n", "\n")

    def has_changed(self, initial: Any, data: Any) -> bool:
        return self.to_python(data) != self.to_python(initial)


class _Number(forms.DecimalField):
    def to_python(self, value: Any) -> Any:
        number = super().to_python(value)
        # 1e99999999 is short to type, and hours of work as an integer.
        if isinstance(number, Decimal) and number.is_finite() and abs(number.adjusted()) > DIGITS:
            raise forms.ValidationError(f"At most {DIGITS:,} digits.")
        return number


class _Json(_Text):
    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return None
        try:
            return parse_json(text, "this")
        except Invalid as error:
            raise forms.ValidationError(str(error).capitalize()) from None


def _form_field(field: Field) -> forms.Field:
    common: dict[str, Any] = {
        "label": field.label,
        "required": False,  # what is needed is the schema's to say, in its own words
        "help_text": field.description,
        "initial": _shown(field),
    }
    match field.kind:
        case Kind.BOOLEAN if not field.nullable:
            return forms.BooleanField(**common)
        case Kind.BOOLEAN:
            return forms.ChoiceField(choices=[("", "none"), ("true", "yes"), ("false", "no")], **common)
        case Kind.CHOICE:
            choices = [(json.dumps(choice), str(choice)) for choice in field.choices]
            empty = [("", "none")] if field.nullable or not field.required else []
            return forms.ChoiceField(choices=[*empty, *choices], **common)
        case Kind.INTEGER:
            return forms.IntegerField(widget=forms.TextInput({"inputmode": "numeric"}), **common)
        case Kind.NUMBER | Kind.DECIMAL:
            return _Number(widget=forms.TextInput({"inputmode": "decimal"}), **common)
        case Kind.JSON:
            return _Json(strip=False, widget=forms.Textarea({"rows": 6, "spellcheck": "false"}), **common)
    widget = forms.Textarea({"rows": 4}) if field.many_lines else forms.TextInput()
    return _Text(strip=False, widget=widget, **common)


def _shown(field: Field) -> Any:
    """What the control shows at first."""
    if not field.present:
        return False if field.kind == Kind.BOOLEAN and not field.nullable else ""
    plain = codec.plain(field.value)
    match field.kind:
        case Kind.BOOLEAN:
            return plain if not field.nullable else "" if plain is None else json.dumps(plain)
        case Kind.CHOICE:
            return "" if plain is None else json.dumps(plain)
        case Kind.JSON:
            return "" if plain is None else json.dumps(plain, ensure_ascii=False, indent=2)
    return "" if plain is None else plain


def _typed(field: Field, value: Any) -> Any:
    """What was typed, as the type that the payload had before; a tool's own types are pydantic's to make."""
    match field.kind:
        case Kind.CHOICE:
            return json.loads(value)
        case Kind.BOOLEAN:
            return value if isinstance(value, bool) else value == "true"
        case Kind.NUMBER:
            return (
                int(value) if isinstance(field.value, int) and value == value.to_integral() else float(value)
            )
        case Kind.TEXT:
            return _like(codec.decode(field.value), value)
    return value


def _like(before: Any, text: str) -> Any:
    make = next((make for kind, make in _TAGGED.items() if isinstance(before, kind)), None)
    try:
        return make(text) if make else text
    except (ValueError, ArithmeticError):
        return text  # the schema says what is wrong with it


_TAGGED: dict[type, Any] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    uuid.UUID: uuid.UUID,
    Decimal: Decimal,
}
