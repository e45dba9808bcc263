"""Forms of bulks: what runs are chosen by, why, and how fast."""

from typing import Any

from django import forms

from runs import registry
from runs.bulk.selection import DEAD, LABELS, STATUSES, Filter
from runs.forms import Moment
from runs.models import Bulk
from runs.models.bulk import CANARY_MOST, RATE_MOST
from runs.services.prioritise import PRIORITIES
from runs.states import FailureKind, Status

ANY = ("", "any")
LONGEST = 300


class FilterForm(forms.Form):
    """What runs are chosen by; sent as an address, so that it can be shared, and again with the form that makes the bulk."""

    verb = forms.ChoiceField(choices=Bulk.Verb.choices, label="What to do")
    status = forms.ChoiceField(required=False, label="Status")
    workflow = forms.CharField(required=False, max_length=LONGEST)
    step = forms.CharField(required=False, max_length=LONGEST, help_text="Where they stand.")
    failure_kind = forms.ChoiceField(
        required=False, choices=[ANY, (DEAD, "Dead letter, any"), *FailureKind.choices]
    )
    fingerprint = forms.UUIDField(required=False, widget=forms.HiddenInput)
    tool = forms.CharField(required=False, max_length=LONGEST)
    subject = forms.CharField(required=False, max_length=LONGEST, help_text="Exactly, such as “order 1042”.")
    queue = forms.CharField(required=False, max_length=LONGEST)
    q = forms.CharField(
        required=False, max_length=LONGEST, help_text="As on the page Runs: 300 runs at most by each way."
    )
    created_from = forms.DateTimeField(required=False, widget=Moment)
    created_to = forms.DateTimeField(required=False, widget=Moment)
    failed_from = forms.DateTimeField(required=False, widget=Moment)
    failed_to = forms.DateTimeField(required=False, widget=Moment)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": ""} | kwargs)
        for name, field in self.fields.items():
            if name in LABELS:
                field.label = LABELS[name] + (" (UTC)" if isinstance(field, forms.DateTimeField) else "")
        status = self.fields["status"]
        assert isinstance(status, forms.ChoiceField)
        status.choices = [ANY, *((one.value, one.label) for one in Status if _is_for_a_verb(one))]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        verb, status = cleaned.get("verb"), cleaned.get("status")
        if verb and status and status not in STATUSES[verb]:
            word = Bulk.Verb(verb).label.lower()
            self.add_error("status", f"There is nothing to {word} about a run that is {status}.")
        return cleaned

    @property
    def chosen(self) -> Filter:
        """The filter, once the form is valid."""
        given = {
            name: value.isoformat() if hasattr(value, "isoformat") else value
            for name, value in self.cleaned_data.items()
            if value
        }
        return Filter.of(given)

    @property
    def workflows(self) -> list[str]:
        """Offered while somebody types."""
        return [workflow.name for workflow in registry.workflows()]


def _is_for_a_verb(status: Status) -> bool:
    return any(status in statuses for statuses in STATUSES.values())


class PaceForm(forms.Form):
    """How fast."""

    seen_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput, required=False)
    canary = forms.IntegerField(min_value=1, max_value=CANARY_MOST, label="First")
    rate = forms.IntegerField(min_value=1, max_value=RATE_MOST, label="Rate")
    reason = forms.CharField(
        max_length=500, required=False, label="Note", help_text="Optional, for the audit."
    )

    def __init__(self, *args: Any, only: tuple[str, ...] = ("canary", "rate"), **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": ""} | kwargs)
        for name in ("canary", "rate"):
            if name not in only:
                del self.fields[name]
            else:
                self.fields[name].widget = forms.TextInput({"inputmode": "numeric", "autocomplete": "off"})

    def arguments(self, *, guarded: bool) -> dict[str, Any]:
        """Keyword arguments of the verb."""
        return {
            name: value for name, value in self.cleaned_data.items() if guarded or name != "seen_revision"
        }


class BulkForm(forms.Form):
    """What a new bulk is given besides its filter."""

    bulk_id = forms.UUIDField(widget=forms.HiddenInput)
    name = forms.CharField(
        max_length=120, help_text="Everybody sees it, such as “Catalogue outage of 29 Nov”."
    )
    reason = forms.CharField(max_length=500, help_text="Written to the history of each run with your name.")
    priority = forms.TypedChoiceField(
        coerce=int,
        choices=[(number, str(number)) for number in reversed(PRIORITIES)],
        label="New priority",
        help_text="Each point is a minute’s head start over runs that become due at the same time; 0 is none.",
    )

    def __init__(self, *args: Any, verb: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": ""} | kwargs)
        if verb != Bulk.Verb.PRIORITISE:
            del self.fields["priority"]
