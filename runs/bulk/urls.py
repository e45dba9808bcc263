"""Pages of bulks. Included by runs/urls.py, in its namespace."""

from django.urls import path

from runs.views import bulk

_bulk = "bulk/<uuid:bulk_id>/"

urlpatterns = [
    path("bulk/", bulk.bulks, name="bulks"),
    path("bulk/new/", bulk.new, name="bulk_new"),
    path(_bulk, bulk.one, name="bulk"),
    path(f"{_bulk}start/", bulk.start, name="bulk_start"),
    path(f"{_bulk}continue/", bulk.go_on, name="bulk_continue"),
    path(f"{_bulk}pause/", bulk.pause, name="bulk_pause"),
    path(f"{_bulk}resume/", bulk.resume, name="bulk_resume"),
    path(f"{_bulk}stop/", bulk.stop, name="bulk_stop"),
]
