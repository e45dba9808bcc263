"""Pages of requests."""

from django.urls import path

from approvals.requests import views

app_name = "requests"
urlpatterns = [
    path("", views.index, name="list"),
    path("<uuid:request_id>/", views.one, name="request"),
    path("<uuid:request_id>/decide/", views.decide, name="decide"),
    path("<uuid:request_id>/withdraw/", views.withdraw, name="withdraw"),
]
