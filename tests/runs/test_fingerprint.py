"""What is folded out of an error's text, and what two failures must share to be the same."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.diagnosis.fingerprint import KEPT, LOOKED_AT, Mark, folded

SAME = {
    "numbers": ["order 1042 not found", "order 7 not found", "order 1,204 not found"],
    "amounts": ["€184.50 is more than 150", "€9.5 is more than 1000"],
    "uuids": [
        "no run 0190f3a2-1111-7bbb-8ccc-1234567890ab",
        "no run 0190F3A2-2222-7BBB-8CCC-1234567890AB",
    ],
    "hex": ["commit 9fceb02d is gone", "commit 8843d7f92416211de9ebb963ff4ce28125932878 is gone"],
    "addresses in memory": ["<Client object at 0x7f3a10>", "<Client object at 0x7FFE20>"],
    "words with numbers": ["charge ch_3Mmlr2 failed", "charge ch_9Xk21a failed"],
    "urls": ["GET https://shop.test/a?id=4: timed out", "GET http://127.0.0.1:8000/b/c: timed out"],
    "e-mail addresses": ["nobody at ada@example.com", "nobody at grace.h+x@mail.example.org"],
    "network addresses": ["10.0.0.17:5432 refused", "192.168.1.2 refused"],
    "times": [
        "since 2026-11-30T04:11:22.123Z",
        "since 2026-01-02 03:04:05+02:00",
        "since 2026-11-30",
        "since 04:11:22",
    ],
    "quoted text": ["no such city 'Kyōto'", 'no such city "São Paulo"', "no such city “Łódź”"],
    "long quotes": [f"cannot read '{'x' * n} y'" for n in (1, 40, 250)],
    "lists": ["missing [1, 2, 3]", "missing [4]"],
    "white space": ["gone  \n away", "gone away"],
}


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME)
def test_what_differs_from_run_to_run_is_folded_away(texts):
    assert len({folded(text) for text in texts}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("503 from the catalogue", "429 from the catalogue"),
        ("catalogue: HTTP 503", "catalogue: HTTP 404"),
        ("the shop answered 500", "the shop answered 409"),
        ("status code: 502 at item 4", "status code: 504 at item 4"),
        ("KeyError: 'approver_group'", "KeyError: 'order_total'"),
        ("timed out", "refused"),
    ],
)
def test_what_says_which_error_it_is_stays(one, other):
    assert folded(one) != folded(other)


def test_the_examples_read_as_a_person_would_write_them():
    assert folded("503 from catalogue at page 17") == "503 from catalogue at page <n>"
    assert folded("can't open '/tmp/x y', isn't it") == "can't open <text>, isn't it"
    assert folded("defaced feedback, deadbeef") == "defaced feedback, deadbeef"
    assert folded("") == ""


def test_a_long_text_is_cut_and_what_follows_the_beginning_does_not_count():
    assert len(folded("word " * 1000)) <= KEPT
    assert folded("a" * LOOKED_AT + "b") == folded("a" * LOOKED_AT + "c")


@given(st.text(max_size=400))
def test_any_text_becomes_one_short_line(text):
    made = folded(text)
    assert len(made) <= KEPT
    assert made == " ".join(made.split())


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.text(string.ascii_letters + " ", min_size=1, max_size=40),
)
def test_numbers_never_tell_two_errors_apart(one, other, text):
    assert folded(f"x {text} no. {one} of") == folded(f"x {text} no. {other} of")


@pytest.mark.parametrize(
    "text", ["'" * 4000, '"\\' * 2000, "a-" * 2000, "1." * 2000, "aa.bb@" * 600, "0" * 4000]
)
def test_no_text_makes_it_slow(text):
    began = time.process_time()
    folded(text)
    assert time.process_time() - began < 0.2


MARK = Mark("failure", "parcel", 2, "pack", "KeyError", "<text>")


@pytest.mark.parametrize(
    "changed",
    [
        Mark("attention", "parcel", 2, "pack", "KeyError", "<text>"),
        Mark("failure", "letter", 2, "pack", "KeyError", "<text>"),
        Mark("failure", "parcel", 2, "ship", "KeyError", "<text>"),
        Mark("failure", "parcel", 2, "pack", "ValueError", "<text>"),
        Mark("failure", "parcel", 2, "pack", "KeyError", "<n>"),
        Mark("failure", "parcel", 2, "packKey", "Error", "<text>"),
    ],
)
def test_each_part_tells_failures_apart(changed):
    assert changed.fingerprint != MARK.fingerprint
    assert changed.signature != MARK.signature


def test_versions_have_their_own_fingerprint_and_share_the_signature():
    newer = Mark("failure", "parcel", 3, "pack", "KeyError", "<text>")
    assert newer.fingerprint != MARK.fingerprint
    assert newer.signature == MARK.signature


def test_a_fingerprint_is_the_same_for_ever():
    """Stored fingerprints would else not be found again: a change of the folding or hashing needs a plan for them."""
    assert str(MARK.fingerprint) == "e777f8d5-b577-9193-0461-fb11e0ebbe42"


def test_a_lone_surrogate_has_a_fingerprint():
    assert Mark("failure", "parcel", 1, "pack", "Error", "\ud800").fingerprint
