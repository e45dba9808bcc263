"""The forms of policies: one for each rule, and what every change asks for."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.models import Group, User
from django.http import QueryDict

from approvals.policies.effective import MOST_RULES, Rule
from runs.errors import Invalid

EXPIRIES = [
    ("reject", "Count as not approved: the agent is told that nobody decided"),
    ("fail", "Fail the step"),
    ("park", "Park the run: it needs attention, and the request stays open"),
    ("approve", "Count as approved, for the reason below"),
]
HOUR_S = 3600


class ReasonForm(forms.Form):
    """What every change of a policy asks for."""

    seen_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, help_text="Written to the history with your name.")


class TryForm(forms.Form):
    """An expression to try."""

    when = forms.CharField(
        label="Expression",
        required=False,
        max_length=1000,
        strip=False,
        widget=forms.TextInput({"class": "mono", "autocomplete": "off", "spellcheck": "false"}),
    )


class RuleForm(forms.Form):
    """One rule; times are in hours."""

    when = forms.CharField(
        label="When",
        required=False,
        max_length=1000,
        widget=forms.TextInput({"autocomplete": "off", "spellcheck": "false", "placeholder": "always"}),
    )
    order = forms.IntegerField(min_value=1, max_value=99, label="Order")
    groups = forms.MultipleChoiceField(
        label="Groups that decide", required=False, widget=forms.CheckboxSelectMultiple
    )
    users = forms.CharField(
        label="And these people",
        required=False,
        max_length=1000,
        help_text="User names, with commas between them.",
    )
    votes = forms.IntegerField(min_value=1, max_value=10, label="Different people who must approve")
    exclude_starter = forms.BooleanField(label="Never whoever started the run", required=False)
    fresh_minutes = forms.IntegerField(
        label="Signed in within",
        required=False,
        min_value=1,
        max_value=1440,
        help_text="Minutes; empty: however long ago. Whoever signed in earlier is asked for the password again.",
    )
    time_limit = forms.DecimalField(
        label="Time limit",
        required=False,
        min_value=Decimal("0.02"),
        max_value=8760,
        help_text="Hours; empty: for ever.",
    )
    remind_every = forms.DecimalField(
        label="Remind every",
        required=False,
        min_value=Decimal("0.25"),
        max_value=8760,
        help_text="Hours; empty: never.",
    )
    escalate_to = forms.MultipleChoiceField(
        label="Then ask these groups as well", required=False, widget=forms.CheckboxSelectMultiple
    )
    escalate_for = forms.DecimalField(
        label="For another",
        required=False,
        min_value=Decimal("0.02"),
        max_value=8760,
        help_text="Hours.",
    )
    on_expiry = forms.ChoiceField(label="And if nobody decides", choices=EXPIRIES)
    sentence = forms.CharField(
        label="Why silence means yes",
        required=False,
        max_length=500,
        help_text="Needed where it does; people read it while they can still object, and history keeps it.",
    )
    remove = forms.BooleanField(label="Leave this rule out", required=False)

    def __init__(self, data: Any = None, *, of_verb: bool = False, **kwargs: Any) -> None:
        super().__init__(data, label_suffix="", **kwargs)
        names = [(name, name) for name in Group.objects.order_by("name").values_list("name", flat=True)]
        for field in ("groups", "escalate_to"):
            self.fields[field].choices = names  # type: ignore[attr-defined]
        if of_verb:
            for field in ("on_expiry", "sentence", "remind_every"):
                del self.fields[field]

    def clean_users(self) -> list[dict[str, Any]]:
        wanted = [name.strip() for name in self.cleaned_data["users"].split(",") if name.strip()]
        found = {user.username: user.pk for user in User.objects.filter(username__in=wanted, is_active=True)}
        missing = [name for name in wanted if name not in found]
        if missing:
            raise forms.ValidationError(f"There is nobody of this name: {', '.join(missing)}.")
        return [{"id": found[name], "name": name} for name in dict.fromkeys(wanted)]

    @property
    def rule(self) -> dict[str, Any]:
        """What was typed, as `Rule` takes it."""
        given = self.cleaned_data
        return {
            "when": given["when"].strip(),
            "groups": given["groups"],
            "users": given["users"],
            "votes": given["votes"],
            "exclude_starter": given["exclude_starter"],
            "fresh_minutes": given["fresh_minutes"],
            "time_limit_s": _seconds(given["time_limit"]),
            "remind_every_s": _seconds(given.get("remind_every")),
            "escalate_to": given["escalate_to"],
            "escalate_for_s": _seconds(given["escalate_for"]) or 24 * HOUR_S,
            "on_expiry": given.get("on_expiry", "reject"),
            "sentence": given.get("sentence", ""),
        }


def _seconds(hours: Decimal | None) -> int | None:
    return None if hours is None else round(hours * HOUR_S)


def _hours(seconds: int | None) -> str:
    return "" if seconds is None else f"{Decimal(seconds) / HOUR_S:.4f}".rstrip("0").rstrip(".")


def initial(rule: Rule, number: int) -> dict[str, Any]:
    return {
        "when": rule.when,
        "order": number,
        "groups": list(rule.groups),
        "users": ", ".join(person.name for person in rule.users),
        "votes": rule.votes,
        "exclude_starter": rule.exclude_starter,
        "fresh_minutes": rule.fresh_minutes,
        "time_limit": _hours(rule.time_limit_s),
        "remind_every": _hours(rule.remind_every_s),
        "escalate_to": list(rule.escalate_to),
        "escalate_for": _hours(rule.escalate_for_s),
        "on_expiry": rule.on_expiry,
        "sentence": rule.sentence,
    }


#: A rule that somebody has just added.
EMPTY = Rule(groups=("operators",))


class PolicyForm:
    """The form of a whole policy: rules in their order, reason, and the revision that was seen."""

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        data: QueryDict | None = None,
        *,
        seen_revision: int = 0,
        of_verb: bool = False,
        reason: str = "",
    ) -> None:
        self.problems: list[str] = []
        if data is None:
            self.reason = ReasonForm(
                initial={"seen_revision": seen_revision, "reason": reason}, label_suffix=""
            )
            given = [initial(rule, number) for number, rule in enumerate(rules, start=1)]
            self.rules = [
                RuleForm(initial=one, prefix=f"rule-{number}", of_verb=of_verb)
                for number, one in enumerate(given, start=1)
            ]
            return
        self.reason = ReasonForm(data, label_suffix="")
        count = _count(data.get("rules", ""))
        self.rules = [
            RuleForm(data, prefix=f"rule-{number}", of_verb=of_verb) for number in range(1, count + 1)
        ]

    def add(self, *, of_verb: bool) -> None:
        """One more rule behind the others, as far as there may be more."""
        number = len(self.rules) + 1
        if number <= MOST_RULES:
            self.rules.append(
                RuleForm(initial=initial(EMPTY, number), prefix=f"rule-{number}", of_verb=of_verb)
            )

    def with_revision(self, seen_revision: int, data: QueryDict) -> None:
        """Keep what was typed, and take the present revision as the one that is seen."""
        kept = data.copy()
        kept["seen_revision"] = str(seen_revision)
        self.reason = ReasonForm(kept, label_suffix="")

    def not_yet(self) -> None:
        """It is only looked at: a reason is asked for when the rules are to act."""
        self.reason.errors.pop("reason", None)

    @property
    def chosen(self) -> list[RuleForm]:
        """The rules that stay, in the order that was typed."""
        stay = [form for form in self.rules if form.is_valid() and not form.cleaned_data["remove"]]
        return sorted(stay, key=lambda form: form.cleaned_data["order"])

    def rules_valid(self) -> bool:
        # Every form is looked at, so that all mistakes are shown at once.
        wrong = [form for form in self.rules if not (form.is_valid() or _is_removed(form))]
        return not wrong

    def is_valid(self) -> bool:
        return self.rules_valid() & self.reason.is_valid()

    @property
    def given(self) -> list[Mapping[str, Any]]:
        """The rules, as the verb takes them. Only after `rules_valid`."""
        return [form.rule for form in self.chosen]

    def say(self, error: Invalid) -> None:
        """Put a refusal of the verb above the form."""
        text = str(error)
        self.problems.append(f"{text[:1].upper()}{text[1:]}.")


def _is_removed(form: RuleForm) -> bool:
    """A rule that is left out may say what it likes."""
    return bool(form.data.get(f"{form.prefix}-remove"))


def _count(text: str) -> int:
    return min(int(text), MOST_RULES) if text.isascii() and text.isdigit() and len(text) < 4 else 0
