"""The table of docs/admins.md is what a fresh installation gives."""

import re

import pytest
from django.contrib.auth.models import Group

from tests.harness.processes import ROOT


def table() -> dict[str, set[str]]:
    """Permissions of each group in the table."""
    lines = [line for line in (ROOT / "docs/admins.md").read_text().splitlines() if line.startswith("|")]
    names = [cell.strip() for cell in lines[0].strip("|").split("|")][2:]
    found: dict[str, set[str]] = {name: set() for name in names}
    for line in lines[2:]:
        permissions, _, *marks = line.strip("|").split("|")
        if len(marks) == len(names):
            for name, mark in zip(names, marks, strict=True):
                if mark.strip():
                    found[name] |= set(re.findall(r"`([\w.]+)`", permissions))
    return found


@pytest.mark.django_db
def test_the_table_of_permissions_is_that_of_the_groups():
    groups = {
        group.name: {
            f"{label}.{name}"
            for label, name in group.permissions.values_list("content_type__app_label", "codename")
        }
        for group in Group.objects.all()
    }
    assert table() == groups
