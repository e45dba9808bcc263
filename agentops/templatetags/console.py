"""The console's parts as template tags. Small ones are written here, larger ones in templates/components/.

Every string that comes from outside (ids, names, payloads, errors) passes through `agentops.console.hostile`.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django import template
from django.forms import BoundField, CheckboxInput
from django.forms.widgets import Widget
from django.template import Context
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentops import saved_views as saved
from agentops.console import badges, hostile, jsonview, times, trace
from agentops.console.filters import Filter, link
from agentops.console.paging import Page
from agentops.console.sparkline import Sparkline
from agentops.console.waterfall import Waterfall
from runs import content

register = template.Library()

COUNT_AT_MOST = 1000
#: A text that is longer, or has more lines, is folded where a page shows several of them.
FOLD, FOLD_LINES = 600, 12
#: What whoever may not see content is told.
ASK = "You may not see what is in this run. Whoever gives people access can grant “View payloads” for it."


@cache
def _sprite() -> str:
    return static("agentops/icons.svg")


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """An icon of the sprite; always beside a word, or in a control with an aria-label."""
    css = f"icon {extra}" if extra else "icon"
    return format_html('<svg class="{}" aria-hidden="true"><use href="{}#{}"/></svg>', css, _sprite(), name)


@register.simple_tag
def status(kind: str, value: str, *, pill: bool = False, more: str = "") -> SafeString:
    """StatusBadge: `kind` and `value` of the table in badges.py; `more` continues the word ("Open, 1 of 2 votes")."""
    look = badges.badge(kind, value)
    css = f"status {look.tone}{' pill' if pill else ''}"
    return format_html(
        '<span class="{}">{}{}{}</span>', css, icon(look.icon), look.word, hostile.visible(more)
    )


@register.simple_tag
def operation_kind(kind: str) -> SafeString:
    """Icon and word of an operation's kind."""
    return format_html('<span class="kind">{}{}</span>', icon(badges.OPERATION_KINDS[kind]), kind)


@register.simple_tag(takes_context=True)
def when(context: Context, at: datetime | None, style: str = "auto", none: str = "never") -> SafeString:
    """Timestamp, full in its title.

    `style`: "auto" (a distance when near, else clock or date; renewed in the browser), "deadline" (the same, and
    marked once past), "due" (the same as "auto" until it is past, then "now": what is due is not "9 s ago"), "clock" (to
    the second, never renewed). `none` stands for a moment that is not there.
    """
    if at is None:
        return format_html('<span class="muted">{}</span>', none)
    now = context.get("now") or timezone.now()
    iso, title = at.isoformat(timespec="milliseconds"), times.full(at)
    if style == "clock":
        return format_html('<time datetime="{}" title="{}">{}</time>', iso, title, times.clock(at, now))
    late = style == "deadline" and at < now
    return format_html(
        '<time datetime="{}" title="{}" data-renew="{}"{}>{}</time>',
        iso,
        title,
        style,
        SafeString(' class="late"') if late else "",
        times.moment(max(at, now) if style == "due" else at, now),
    )


@register.simple_tag
def short_id(value: Any, *, copy: bool = True, length: int = 13) -> SafeString:
    """IdDisplay: the first `length` characters, the whole in title and clipboard.

    Our ids begin with the time in milliseconds: eight characters would be the same for all that was made within a minute.
    """
    text = hostile.plain(str(value))
    button: SafeString | str = ""
    if copy:
        label = f"Copy {text[:length]}"
        button = format_html(
            '<button class="icon-btn" type="button" data-copy="{}" aria-label="{}">{}</button>',
            text,
            label,
            icon("copy"),
        )
    return format_html('<span class="id" title="{}">{}{}</span>', text, text[:length], button)


@register.simple_tag
def json(
    value: Any, label: str = "Value", full_url: str = "", *, budget: int = jsonview.BUDGET
) -> SafeString:
    """JsonView: a tree of <details>; what is longer than `budget` is cut, with a link to `full_url` for the whole."""
    body = jsonview.json_html(value, full_url=full_url, budget=budget)
    return format_html(
        '<div class="code json" tabindex="0" role="region" aria-label="{}">{}</div>', label, body
    )


@register.simple_tag
def changes(before: Any, after: Any, label: str = "Changes") -> SafeString:
    """Two states, field by field, with minus and plus."""
    body = jsonview.changes_html(before, after)
    return format_html(
        '<div class="code diffcode" tabindex="0" role="region" aria-label="{}">{}</div>', label, body
    )


@register.simple_tag
def traceback(text: str, label: str = "Traceback") -> SafeString:
    """Trace: frames of the author in front, frames of libraries folded."""
    body = trace.trace_html(text)
    return format_html(
        '<div class="code trace" tabindex="0" role="region" aria-label="{}">{}</div>', label, body
    )


@register.simple_tag
def count(number: int, title: str = "", *, hot: bool = False, most: int = COUNT_AT_MOST) -> SafeString:
    """Count: at most "1,000+", or what `most` says; `hot` where somebody should act."""
    shown = f"{most:,}+" if number > most else f"{number:,}"
    css = "count hot" if hot else "count"
    return format_html('<span class="{}" title="{}">{}</span>', css, title or f"{number:,}", shown)


@register.simple_tag
def avatar(name: str) -> SafeString:
    """The initials of `name` in a circle; the name itself must stand beside it."""
    words = [
        word for word in hostile.plain(name).replace(".", " ").replace("_", " ").split() if word[0].isalnum()
    ]
    initials = "".join(word[0] for word in (words[:1] + words[1:][-1:])).upper()
    return format_html('<span class="avatar" aria-hidden="true">{}</span>', initials or "?")


@register.simple_tag
def who(name: str) -> SafeString:
    """Avatar and name of a person."""
    return format_html('<span class="who">{}{}</span>', avatar(name), hostile.isolated(name))


@register.filter
def visible(text: Any) -> SafeString:
    """Text from outside, escaped, with deceiving characters as markers; or that it is hidden, and where to ask."""
    if isinstance(text, content.Hidden):
        return format_html('<span class="hidden-content" title="{}">{}{}</span>', ASK, icon("lock"), text)
    return hostile.isolated(hostile.cut(str(text)))


@register.filter
def brief(text: Any, most: int = 300) -> SafeString:
    """Like `visible`, of a longer text the first `most` characters: for a line of a list, whose page has the whole."""
    if isinstance(text, content.Hidden):
        return visible(text)
    told = str(text)
    return hostile.isolated(told if len(told) <= most else f"{told[:most].rstrip()}…")


@register.filter
def folded(text: Any, most: int = hostile.LONGEST) -> SafeString:
    """Like `visible`; of a long text the beginning, and the rest, up to `most`, opens below it. Not inside a paragraph."""
    if isinstance(text, content.Hidden):
        return visible(text)
    told = hostile.cut(str(text), most)
    at = _fold_at(told)
    if at is None:
        return hostile.isolated(told)
    return format_html(
        '{}<details class="rest"><summary>{} more characters</summary>{}</details>',
        hostile.isolated(told[:at]),
        f"{len(str(text)) - at:,}",
        hostile.isolated(told[at:]),
    )


def _fold_at(text: str) -> int | None:
    """Where a text is folded: after FOLD_LINES lines or FOLD characters; None where little would be left over."""
    end = 0
    for _ in range(FOLD_LINES):
        end = text.find("\n", end) + 1
        if not end:
            break
    # Else between words, where there are any.
    at = end if 0 < end < FOLD else text.rfind(" ", FOLD - FOLD // 6, FOLD) + 1 or FOLD
    return at if len(text) > at + FOLD // 3 or text.count("\n", at) > FOLD_LINES // 3 else None


@register.filter
def plain(text: Any) -> str:
    """Text from outside for titles and attributes, with deceiving characters as [U+XXXX]."""
    return hostile.plain(hostile.cut(str(text)))


@register.filter
def took(seconds: float | None) -> str:
    """A duration in words; "none" where there is none."""
    return "none" if seconds is None else times.duration(float(seconds))


@register.simple_block_tag
def fact(content: str, label: str, *, mono: bool = False) -> SafeString:
    """One of <dl class="facts">: label over value."""
    return format_html(
        "<div><dt>{}</dt><dd{}>{}</dd></div>", label, SafeString(' class="mono"') if mono else "", content
    )


@register.simple_block_tag
def note(content: str, tone: str = "is-idle", name: str = "info") -> SafeString:
    """Note: one coloured rule at the left, an icon, text at full ink."""
    return format_html('<div class="note {}">{}<div>{}</div></div>', tone, icon(name), content)


@register.simple_block_tag
def empty(content: str, title: str, name: str = "info") -> SafeString:
    """EmptyState: what would be here, and why it is not."""
    return format_html('<div class="empty">{}<b>{}</b><span>{}</span></div>', icon(name), title, content)


@register.inclusion_tag("components/field.html")
def field(
    bound: BoundField, hint: str = "", label: str = "", placeholder: str = "", unit: str = ""
) -> dict[str, Any]:
    """One field of a Django form with label, hint, unit and errors."""
    widget: Widget = bound.field.widget
    attrs: dict[str, Any] = {"class": widget.attrs.get("class", "input")}
    if placeholder:
        attrs["placeholder"] = placeholder
    if hint:
        # Django names errors in aria-describedby by itself, the hint only when it is a help text.
        ids = [f"{bound.auto_id}_hint", *([f"{bound.auto_id}_error"] if bound.errors else [])]
        attrs["aria-describedby"] = " ".join(ids)
    tick = isinstance(widget, CheckboxInput)
    if tick:
        attrs.pop("class")
    return {
        "bound": bound,
        "control": bound.as_widget(attrs=attrs),
        "hint": hint or bound.help_text,
        "hint_id": f"{bound.auto_id}_hint" if hint else f"{bound.auto_id}_helptext",
        "label": label or bound.label,
        "unit": unit,
        "tick": tick,
    }


@register.inclusion_tag("components/filters.html", takes_context=True)
def filters(context: Context, chips: Sequence[Filter]) -> dict[str, Any]:
    """FilterBar: one chip a filter; each choice is a link that changes the query string."""
    query = context["request"].GET
    return {
        "chips": [
            {
                "filter": chip,
                "clear": link(query, **{chip.name: None}) if chip.value else "",
                "choices": [
                    (choice, link(query, **{chip.name: choice.value}), choice.value == chip.value)
                    for choice in chip.choices
                ],
            }
            for chip in chips
        ],
        "any": any(chip.value for chip in chips),
        "clear_all": link(query, **{chip.name: None for chip in chips}),
    }


@register.inclusion_tag("components/saved_views.html", takes_context=True)
def saved_views(context: Context, page: str) -> dict[str, Any]:
    """SavedViews: the person's own views of the list whose URL has this name. One query."""
    return saved.choices(context["request"], page)


@register.inclusion_tag("components/pagination.html")
def pagination(page: Page[Any], noun: str = "Rows") -> dict[str, Any]:
    """Newer and older; nothing where everything is on one page."""
    return {"page": page, "noun": noun}


@register.inclusion_tag("components/waterfall.html")
def fall(drawn: Waterfall, label: str = "Timeline") -> dict[str, Any]:
    """Waterfall: one lane a row."""
    return {"fall": drawn, "label": label}


@register.inclusion_tag("components/spark.html")
def spark(drawn: Sparkline, tone: str = "is-idle", *, wide: bool = False) -> dict[str, Any]:
    """Sparkline: a trend as a row of bars."""
    return {"drawn": drawn, "tone": tone, "wide": wide}
