"""Forms of the pages of people. They check what was typed; what is allowed is for the services to say."""

from typing import Any

from django import forms
from django.contrib.auth.models import Group

from agentops.people import reading
from agentops.people.services import REASON_LENGTH
from runs import access
from runs.models import Grant


def _reason() -> forms.CharField:
    return forms.CharField(
        max_length=REASON_LENGTH, label="Reason", help_text="Written to the audit with your name."
    )


class ReasonForm(forms.Form):
    """What every verb asks for, and the version of what was on the page."""

    seen = forms.CharField(max_length=64, widget=forms.HiddenInput)
    reason = _reason()


class GrantForm(forms.Form):
    """Which capability, and for what."""

    capability = forms.ChoiceField(label="Capability")
    scope = forms.ChoiceField(label="For", choices=Grant.Scope.choices)
    workflow = forms.ChoiceField(label="Workflow", required=False, help_text="Where it is for one workflow.")
    subject = forms.CharField(
        label="Subject begins with",
        max_length=200,
        required=False,
        strip=False,
        help_text="Where it is for subjects, such as “order ”. Upper and lower case are told apart.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        self._choose("capability", [(name, one.label) for name, one in access.CAPABILITIES.items()])
        self._choose("workflow", [("", "choose one"), *((name, name) for name in reading.workflows())])

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        match given.get("scope"):
            case Grant.Scope.WORKFLOW:
                given["name"] = given.get("workflow", "")
                if not given["name"] and "workflow" not in self.errors:
                    self.add_error("workflow", "Choose the workflow.")
            case Grant.Scope.SUBJECT:
                given["name"] = given.get("subject", "")
                if not given["name"].strip() and "subject" not in self.errors:
                    self.add_error("subject", "Say what the subject begins with.")
            case _:
                given["name"] = ""
        return given


class AddPersonForm(forms.Form):
    """Somebody new."""

    username = forms.CharField(
        max_length=150,
        label="User name",
        help_text="What they sign in with, and what the history calls them. It cannot be changed later.",
    )
    first_name = forms.CharField(max_length=150, label="First name", required=False)
    last_name = forms.CharField(max_length=150, label="Last name", required=False)
    groups = forms.ModelMultipleChoiceField(
        Group.objects.order_by("name"),
        required=False,
        label="Groups",
        widget=forms.CheckboxSelectMultiple,
    )
    reason = _reason()


class AddGroupForm(forms.Form):
    """A group that holds nothing yet."""

    name = forms.CharField(
        max_length=150, label="Name", help_text="Policies name it. It cannot be changed later."
    )
    reason = _reason()


class WhoForm(forms.Form):
    """What somebody should be able to do, and where."""

    can = forms.ChoiceField(label="Who can")
    workflow = forms.ChoiceField(label="In workflow", required=False)
    under = forms.ChoiceField(
        label="Approvals of", required=False, help_text="Only where you ask who can decide approvals."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        for name, choices in (
            ("can", reading.verbs()),
            ("workflow", [("", "any"), *((one, one) for one in reading.workflows())]),
            ("under", [("", "any tool or policy"), *reading.approvals()]),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices
