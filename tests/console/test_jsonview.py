"""JsonView: readable, collapsible, and never longer than a page bears."""

import re
from html import unescape

from agentops.console.jsonview import BUDGET, changes_html, json_html


def test_a_short_value_stands_on_one_line() -> None:
    assert unescape(json_html({"id": 1039, "vip": True, "since": None})) == (
        '<div class="row"><span class="v">{"id": 1039, "vip": true, "since": null}</span></div>'
    )


def test_a_larger_value_is_a_tree_that_says_how_many_it_holds() -> None:
    html = json_html(
        {"items": [{"sku": "LAMP-2", "name": "Table lamp, brass, without plug", "price": "92.00"}] * 2}
    )
    assert html.startswith("<details open><summary>{ ")
    assert "1 field</span>" in html
    assert "2 items</span>" in html


def test_deep_containers_start_closed() -> None:
    deep: object = "x" * 80
    for _ in range(5):
        deep = {"a": deep}
    html = json_html(deep)
    assert html.count("<details open>") == 3
    assert html.count("<details><summary>") == 2


def test_the_rest_of_a_long_string_is_one_click_away() -> None:
    html = json_html("x" * 1000)
    assert "602 more characters</summary>" in html
    assert html.count("x") >= 1000


def test_what_is_too_much_is_cut_said_and_linked() -> None:
    html = json_html(["y" * 100] * 50_000, full_url="/whole/?a=1&b=2")
    assert len(html) < 5 * BUDGET
    assert "more not shown here" in html
    assert 'href="/whole/?a=1&amp;b=2"' in html


def test_one_endless_string_is_cut_too() -> None:
    html = json_html({"log": "z" * 5_000_000}, full_url="/whole/")
    assert len(html) < 2 * BUDGET
    assert "not shown here" in html
    assert "/whole/" in html


def test_a_whole_value_has_no_link_to_the_whole() -> None:
    assert "/whole/" not in json_html({"a": 1}, full_url="/whole/")


def test_a_change_shows_what_went_and_what_came() -> None:
    html = changes_html({"plan": None, "ticket": 1}, {"plan": {"amount": "92.00"}, "ticket": 1, "new": 2})
    assert '<span class="minus">- &quot;plan&quot;: null</span>' in html
    assert '<span class="plus">+ &quot;plan&quot;: {&quot;amount&quot;: &quot;92.00&quot;}</span>' in html
    assert '<span class="">  &quot;ticket&quot;: 1</span>' in html
    assert '<span class="plus">+ &quot;new&quot;: 2</span>' in html


def test_what_is_no_object_is_a_line() -> None:
    html = changes_html({"a": 1}, [1, "b"])
    assert '<span class="minus">- {&quot;a&quot;: 1}</span>' in html
    assert '<span class="plus">+ [1, &quot;b&quot;]</span>' in html


def test_one_and_true_differ() -> None:
    assert '<span class="plus">+ &quot;a&quot;: true</span>' in changes_html({"a": 1}, {"a": True})


def test_a_difference_of_many_fields_is_cut_and_says_of_how_many() -> None:
    before = {f"field {number}": number for number in range(5_000)}
    html = changes_html(before, {**before, "field 7": 0})
    assert html.count("<span") == 3 and "4,999 fields are the same in both" in html
    all_new = changes_html({}, dict.fromkeys(before, "x" * 100))
    assert len(all_new) < 3 * BUDGET and re.search(r"4,\d{3} more that differ, not shown here", all_new)
