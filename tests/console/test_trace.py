"""Trace: the author's frames first, the library's folded."""

from agentops.console.trace import LIMIT, trace_html
from agentops.look.samples import TRACEBACK


def test_frames_of_the_engine_and_of_libraries_are_folded() -> None:
    html = trace_html(TRACEBACK)
    assert html.count("2 frames of the engine and libraries") == 2
    assert "<b>shop/workflows.py:61</b>, in act" in html
    assert html.index("shop/workflows.py") < html.index("shop/tools.py")


def test_the_error_line_is_last_and_escaped() -> None:
    assert trace_html(TRACEBACK).endswith("&lt;b&gt;not bold&lt;/b&gt;</div>")


def test_text_that_is_no_traceback_is_shown_as_it_is() -> None:
    assert trace_html("boom\nbang") == '<div class="row">boom</div><div class="row">bang</div>'


def test_the_middle_of_an_endless_traceback_is_left_out_and_said() -> None:
    html = trace_html("start\n" + "x\n" * LIMIT + "end")
    assert "characters left out" in html
    assert "start" in html
    assert html.endswith('<div class="row">end</div>')
