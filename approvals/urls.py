from django.urls import URLPattern, URLResolver, path

from approvals import views

app_name = "approvals"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.inbox, name="inbox"),
    path("list/", views.poll_list, name="list"),
    path("<uuid:approval_id>/", views.approval, name="approval"),
    path("<uuid:approval_id>/now/", views.poll_approval, name="now"),
    path("<uuid:approval_id>/versions/<int:number>/", views.version, name="version"),
    path("<uuid:approval_id>/decide/", views.decide, name="decide"),
    path("<uuid:approval_id>/edit/", views.edit, name="edit"),
]
