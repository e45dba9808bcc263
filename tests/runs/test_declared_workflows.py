"""The workflows that come with the product, and those of the tests, are declared without mistakes."""

from django.core.checks import run_checks

from tests import factories
from tests.runs.engine import flows


def test_no_system_check_complains_about_a_workflow_or_tool():
    assert factories.parcel.steps
    assert flows.hello.steps
    assert run_checks(tags=["workflows"]) == []
