"""Forms of the verbs, and forms made from a JSON Schema (a workflow's input, a tool's result).

What a person types into a form made from a schema stays text; pydantic reads it, and its complaints stand at the fields.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.text import capfirst
from pydantic import ValidationError

from runs.errors import Invalid
from runs.models import Run
from runs.services.doubt import File
from runs.services.payloads import parse_json
from runs.services.prioritise import PRIORITIES
from runs.sizes import readable

#: Text that may be longer than this is given a text area.
LINE = 200
#: Bytes of text that one field takes. What is larger is for `manage.py start` and the like, not for a text area.
MOST_TYPED = 900_000


def short_enough(text: str) -> None:
    """Validator: refuses what is too long before anything reads it."""
    # Characters first: counting the bytes of a long text is work as well.
    size = len(text) if len(text) > MOST_TYPED else len(text.encode(errors="replace"))
    if size > MOST_TYPED:
        raise forms.ValidationError(
            f"This is too long: {readable(size)}. A form takes at most {readable(MOST_TYPED)}; "
            "what is larger is kept elsewhere and referred to."
        )


#: What stands in a recorded value besides plain JSON.
TAGS = "Decimals, times and the like are tagged as they are recorded; leave their tags."


class JSONText(forms.CharField):
    """A value as JSON, exactly: NaN and a key twice are refused."""

    def __init__(self, **kwargs: Any) -> None:
        area = forms.Textarea(attrs={"rows": 14, "spellcheck": "false", "class": "input mono"})
        super().__init__(widget=area, validators=[short_enough], **kwargs)

    def clean(self, value: Any) -> Any:
        return _json(super().clean(value))


class VerbForm(forms.Form):
    """What every verb on a run takes: the version of the run that the person saw, and why."""

    seen_version = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    reason = forms.CharField(
        max_length=500, help_text="Written to the run's history with your name.", label="Reason"
    )

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the verb."""
        return dict(self.cleaned_data)


class Moment(forms.DateTimeInput):
    """A moment in UTC, chosen with the browser's own control."""

    input_type = "datetime-local"

    def __init__(self) -> None:
        super().__init__(format="%Y-%m-%dT%H:%M")


class RetryForm(VerbForm):
    """`extend_deadline_to` is asked for only where the run's deadline has passed."""

    field_order: tuple[str, ...] = ("extend_deadline_to", "reason")
    extend_deadline_to = forms.DateTimeField(
        widget=Moment, label="New deadline (UTC)", help_text="Its deadline has passed; it needs a later one."
    )

    def __init__(self, *args: Any, deadline_passed: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not deadline_passed:
            del self.fields["extend_deadline_to"]


class SkipForm(RetryForm):
    """`state` is asked for only where the person may see it, and a new deadline where the old one has passed."""

    field_order = ("state", "extend_deadline_to", "reason")
    to = forms.CharField(widget=forms.HiddenInput, max_length=200)
    state = JSONText(label="State as the step would have left it (JSON)", help_text=TAGS)

    def __init__(self, *args: Any, deadline_passed: bool, with_state: bool, **kwargs: Any) -> None:
        super().__init__(*args, deadline_passed=deadline_passed, **kwargs)
        if not with_state:
            del self.fields["state"]


class PriorityForm(VerbForm):
    """Another priority; which one is chosen by the address."""

    priority = forms.IntegerField(
        widget=forms.HiddenInput, min_value=min(PRIORITIES), max_value=max(PRIORITIES)
    )


class StateForm(VerbForm):
    """The state of a run, as JSON."""

    field_order = ("state", "reason")
    state = JSONText(label="State (JSON)", help_text=TAGS)


class ForkForm(VerbForm):
    """Where a fork begins; `input` or `state` as JSON where one of them is edited."""

    field_order = ("version", "input", "state", "reason")
    visit = forms.IntegerField(widget=forms.HiddenInput, min_value=1, max_value=2**31 - 1)
    version = forms.TypedChoiceField(
        coerce=int, label="Version of the workflow", required=False, empty_value=None
    )
    input = JSONText(label="Input (JSON)", help_text="Checked by the workflow's own type.")
    state = JSONText(label="State (JSON)", help_text=TAGS)

    def __init__(self, *args: Any, edits: str, versions: Sequence[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("input", "state"):
            if name != edits:
                del self.fields[name]
        if len(versions) > 1:
            choice = self.fields["version"]
            assert isinstance(choice, forms.TypedChoiceField)
            choice.choices = [(one, str(one)) for one in versions]
        else:
            del self.fields["version"]


class SignalForm(VerbForm):
    """A signal that a person sends; `names` are those that the run waits for now."""

    field_order = ("name", "payload", "reason")
    name = forms.CharField(max_length=200, label="Signal", help_text="Its name, as the step waits for it.")
    payload = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false", "class": "input mono"}),
        required=False,
        validators=[short_enough],
        initial="{}",
        label="Payload (JSON)",
        help_text="What the step is given as the signal's content.",
    )
    external_id = forms.CharField(widget=forms.HiddenInput, max_length=200)

    def clean_payload(self) -> Any:
        return _json(self.cleaned_data["payload"] or "{}")


class GoneForm(forms.Form):
    reason = forms.CharField(
        max_length=500, label="How do you know?", help_text="Written to the audit with your name."
    )


class EvidenceForm(VerbForm):
    """An answer with what the person saw, as a small file."""

    file = forms.FileField(
        required=False,
        label="Evidence",
        max_length=200,
        help_text="A screenshot or an export, at most 1 MB. Kept with your answer; others can download it.",
    )

    def arguments(self) -> dict[str, Any]:
        given = super().arguments()
        sent = given.pop("file")
        return given if sent is None else {**given, "file": File(sent.name, sent.read())}


class HappenedForm(EvidenceForm):
    """“It happened”: the reference, where the tool makes a result from it, or else the result's own form beside this one."""

    field_order = ("reference", "reason")
    reference = forms.CharField(
        max_length=500, label="Provider reference", help_text="What the provider calls it."
    )
    reason = forms.CharField(
        max_length=500, label="How do you know?", help_text="Written to the run's history."
    )

    def __init__(self, *args: Any, reference_is_enough: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not reference_is_enough:
            self.fields["reference"].required = False


class NotHappenedForm(EvidenceForm):
    reason = forms.CharField(
        max_length=500, label="How do you know?", help_text="Written to the run's history."
    )
    looked = forms.BooleanField(label="I looked for it at the provider just now")

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if name != "looked"}


class StartForm(forms.Form):
    """What a run is given besides its input."""

    subject = forms.CharField(
        required=False,
        max_length=200,
        help_text="What the run is about, such as “order 1042”. Empty: made from the input.",
    )
    start_key = forms.CharField(
        required=False,
        max_length=500,
        label="Start key",
        help_text="Starting twice with the same key and input starts one run.",
    )


# --- forms from a schema -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """One value that a schema asks for; `schema` has its references and options resolved."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    optional: bool
    """It may be null."""


class SchemaForm(forms.Form):
    """A form made from the schema of a value: a field for each property of an object, or one field `value` named `label`.

    `read` turns what was typed into the value and raises pydantic's ValidationError.
    """

    def __init__(self, schema: Mapping[str, Any], read: Any, *args: Any, label: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.read = read
        self.is_object, self.wanted = _wanted(schema, label)
        for one in self.wanted:
            self.fields[one.name] = _field(one)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        given = {one.name: cleaned[one.name] for one in self.wanted if _given(cleaned.get(one.name))}
        self.value: Any = None
        if self.errors:
            return cleaned
        typed = given if self.is_object else given.get("value")
        try:
            self.read(typed)
        except ValidationError as error:
            self._complain(error)
        self.value = typed
        return cleaned

    def _complain(self, error: ValidationError) -> None:
        """Put each mistake at its field; the path within a nested value goes before the message."""
        for mistake in error.errors(include_url=False, include_input=False, include_context=False):
            place = [str(part) for part in mistake["loc"]]
            field = place.pop(0) if self.is_object and place and place[0] in self.fields else None
            if field is None and not self.is_object and self.fields:
                field = "value"
            # Branches of a union are names of types, which mean nothing to whoever typed.
            path = ".".join(part for part in place if "[" not in part)
            self.add_error(field, f"{path}: {mistake['msg']}" if path else str(mistake["msg"]))


def _given(value: Any) -> bool:
    return value is not None and value != ""


def _wanted(schema: Mapping[str, Any], label: str) -> tuple[bool, list[Wanted]]:
    """Whether the value is an object with known properties, and what to ask for."""
    definitions = schema.get("$defs", {})
    top, nullable = _resolve(schema, definitions)
    if top.get("type") == "null":
        return False, []
    if top.get("type") == "object" and top.get("properties") and not nullable:
        required = set(top.get("required", ()))
        asked = []
        for name, part in top["properties"].items():
            resolved, optional = _resolve(part, definitions)
            asked.append(Wanted(name, resolved, name in required, optional))
        return True, asked
    return False, [Wanted("value", {"title": label, **top}, not nullable, nullable)]


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """`schema` with its reference followed and a single alternative taken, and whether null is accepted."""
    found = dict(schema)
    while "$ref" in found or len(found.get("allOf", ())) == 1:
        inner = (
            found.pop("allOf")[0]
            if "$ref" not in found
            else definitions[found.pop("$ref").rpartition("/")[2]]
        )
        found = {**inner, **found}
    options = found.get("anyOf", ())
    real = [option for option in options if option.get("type") != "null"]
    if options and len(real) < len(options):
        rest = {key: value for key, value in found.items() if key != "anyOf"}
        inner = {**real[0], **rest} if len(real) == 1 else {**rest, "anyOf": real}
        return _resolve(inner, definitions)[0], True
    return found, False


def _field(wanted: Wanted) -> forms.Field:
    schema = wanted.schema
    common: dict[str, Any] = {
        "required": wanted.required,
        "label": str(schema.get("title") or wanted.name.replace("_", " ").capitalize()),
        "help_text": _hint(schema),
        "initial": _initial(schema),
    }
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices:
        return _Choice(choices, **common)
    kind = schema.get("type")
    if kind == "boolean":
        # A box that is not ticked says no; only where "not said" differs from it, three answers are offered.
        if wanted.optional:
            return _Choice([True, False], **{**common, "required": False})
        return forms.BooleanField(**{**common, "required": False})
    if kind in ("integer", "number") or _is_decimal(schema):
        return forms.CharField(widget=_number(schema, kind), validators=[short_enough], **common)
    if kind == "string":
        return forms.CharField(widget=_text(schema), strip=False, validators=[short_enough], **common)
    return _JSONField(**common)


def _hint(schema: Mapping[str, Any]) -> str:
    said = str(schema.get("description", ""))
    examples = schema.get("examples") or ()
    if examples:
        said = f"{said} For instance: {examples[0]}".strip()
    return said


def _initial(schema: Mapping[str, Any]) -> Any:
    default = schema.get("default")
    return json.dumps(default, ensure_ascii=False, indent=2) if isinstance(default, dict | list) else default


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    """Pydantic describes a Decimal as a number or a text with the pattern of one."""
    return {option.get("type") for option in schema.get("anyOf", ())} == {"number", "string"}


def _number(schema: Mapping[str, Any], kind: Any) -> forms.TextInput:
    # A text field: a browser's number field would pass a Decimal through binary floating point.
    attrs = {"inputmode": "numeric" if kind == "integer" else "decimal", "autocomplete": "off"}
    return forms.TextInput(attrs=attrs)


def _text(schema: Mapping[str, Any]) -> forms.Widget:
    match schema.get("format"):
        case "date":
            return forms.DateInput(attrs={"type": "date"})
        case "date-time":
            return Moment()
        case "time":
            return forms.TimeInput(attrs={"type": "time"})
    longest = schema.get("maxLength")
    if longest is not None and longest <= LINE:
        return forms.TextInput(attrs={"maxlength": longest})
    if longest is None and not schema.get("pattern"):
        return forms.Textarea(attrs={"rows": 2})
    return forms.Textarea(attrs={"rows": 4}) if longest else forms.TextInput()


class _Choice(forms.TypedChoiceField):
    """One of the values of an enumeration, whatever their type."""

    def __init__(self, values: Sequence[Any], **kwargs: Any) -> None:
        texts = {_word(value): value for value in values}
        blank = [] if kwargs.get("initial") is not None else [("", "")]
        kwargs["initial"] = _word(kwargs["initial"]) if kwargs.get("initial") is not None else ""
        super().__init__(
            choices=[*blank, *((text, text) for text in texts)],
            coerce=lambda text: texts[text],
            empty_value=None,
            **kwargs,
        )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value)


class _JSONField(forms.CharField):
    """Any other value, as JSON; integers stay exact and NaN is refused."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs["help_text"] = f"{kwargs['help_text']} As JSON.".strip()
        widget = forms.Textarea(attrs={"rows": 5, "spellcheck": "false", "class": "input mono"})
        super().__init__(widget=widget, validators=[short_enough], **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        return _json(text) if text.strip() else None


def _json(text: str) -> Any:
    try:
        return parse_json(text, "this")
    except Invalid as error:
        raise forms.ValidationError(capfirst(str(error))) from None


def with_seen(run: Run, **initial: Any) -> dict[str, Any]:
    """Initial values of a verb's form for the run as it is."""
    return {"seen_version": run.seen_version, **initial}
