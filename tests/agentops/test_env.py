import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from agentops import env


def test_text_that_is_empty_counts_as_unset() -> None:
    assert env.text("X", "default", environ={"X": "  "}) == "default"
    assert env.text("X", "default", environ={"X": " value "}) == "value"


@pytest.mark.parametrize(
    ("word", "value"), [("1", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False)]
)
def test_a_flag_reads_the_usual_words(word: str, value: bool) -> None:
    assert env.flag("X", environ={"X": word}) is value


def test_a_flag_refuses_any_other_word() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"X is 'maybe': set it to 1 \(on\) or 0 \(off\)"):
        env.flag("X", environ={"X": "maybe"})


def test_an_unset_flag_takes_its_default() -> None:
    assert env.flag("X", True, environ={}) is True


def test_numbers_by_name_are_each_checked() -> None:
    assert env.integers("X", minimum=1, environ={}) == {}
    assert env.integers("X", minimum=1, environ={"X": "state=5, log = 7,"}) == {"state": 5, "log": 7}
    for wrong in ("state", "state=", "=5", "state=0", "state=-1", "state=1.5", "state=²"):
        with pytest.raises(ImproperlyConfigured, match="X holds"):
            env.integers("X", minimum=1, environ={"X": wrong})


def test_an_integer_has_a_smallest_value() -> None:
    assert env.integer("X", 5, minimum=1, environ={}) == 5
    assert env.integer("X", 5, minimum=1, environ={"X": "7"}) == 7
    with pytest.raises(ImproperlyConfigured, match="set it to 1 or more"):
        env.integer("X", 5, minimum=1, environ={"X": "0"})
    with pytest.raises(ImproperlyConfigured, match="whole number"):
        env.integer("X", 5, environ={"X": "1.5"})


def test_a_number_is_finite_and_has_a_smallest_value() -> None:
    assert env.number("X", 0.5, environ={}) == 0.5
    assert env.number("X", 0.5, minimum=0.1, environ={"X": "2.5"}) == 2.5
    for wrong in ("soon", "nan", "inf", "0"):
        with pytest.raises(ImproperlyConfigured, match="X"):
            env.number("X", 0.5, minimum=0.1, environ={"X": wrong})


def test_a_list_drops_empty_entries() -> None:
    assert env.items("X", environ={"X": "a, b,,c "}) == ["a", "b", "c"]
    assert env.items("X", ("d",), environ={}) == ["d"]


def test_a_secret_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hush\n")
    assert env.secret("X", environ={"X_FILE": str(path)}) == "hush"
    assert env.secret("X", environ={"X": "direct"}) == "direct"
    assert env.secret("X", "default", environ={}) == "default"


def test_a_secret_given_twice_missing_or_empty_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        env.secret("X", environ={"X_FILE": str(path)})
    path.write_text("\n")
    with pytest.raises(ImproperlyConfigured, match="is empty"):
        env.secret("X", environ={"X_FILE": str(path)})
    with pytest.raises(ImproperlyConfigured, match="both set"):
        env.secret("X", environ={"X": "hush", "X_FILE": str(path)})


def test_a_database_url_becomes_settings() -> None:
    found = env.database("postgresql://me:p%40ss@db.example:5433/ops?sslmode=require&connect_timeout=3")
    assert found["NAME"] == "ops"
    assert (found["USER"], found["PASSWORD"]) == ("me", "p@ss")
    assert (found["HOST"], found["PORT"]) == ("db.example", "5433")
    assert found["OPTIONS"] == {"sslmode": "require", "connect_timeout": "3"}


def test_a_database_url_can_name_a_socket_folder() -> None:
    found = env.database("postgresql:///ops?host=%2Fvar%2Frun%2Fpostgresql&port=5433")
    assert (found["HOST"], found["PORT"], found["OPTIONS"]) == ("/var/run/postgresql", "5433", {})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://db/ops", "must start with postgresql://"),
        ("postgresql://db", "names no database"),
        ("postgresql://db:99999/ops", "port"),
    ],
)
def test_a_wrong_database_url_says_what_is_wrong(url: str, said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=said):
        env.database(url)


def test_apps_are_looked_for_when_settings_are_read() -> None:
    assert env.apps("X", environ={"X": "tests.chaos.app, django.contrib.sites.apps.SitesConfig"}) == [
        "tests.chaos.app",
        "django.contrib.sites.apps.SitesConfig",
    ]


@pytest.mark.parametrize("app", ["nosuch", "nosuch.apps.NosuchConfig", "tests.nosuch", "tests.nosuch.Config"])
def test_an_app_that_does_not_exist_is_named(app: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"X names {app}, which Python does not find"):
        env.apps("X", environ={"X": app})


def test_an_app_that_does_not_exist_ends_a_command_with_a_sentence() -> None:
    found = subprocess.run(
        [sys.executable, "manage.py", "check"],
        env=os.environ | {"AGENTOPS_APPS": "nosuch", "DJANGO_SETTINGS_MODULE": "agentops.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.strip().startswith("AGENTOPS_APPS names nosuch")
    assert found.stderr.count("\n") == 1
