"""Settings of the stand-in cluster: those of the tests without the apps of the engine."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["agentops", "django.contrib.auth", "django.contrib.contenttypes", "django_q"]
ROOT_URLCONF = ""
