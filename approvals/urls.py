from django.urls import URLPattern, URLResolver, path

from approvals import views
from approvals.inbox import item_views, together_views

app_name = "approvals"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.inbox, name="inbox"),
    path("list/", views.poll_list, name="list"),
    path("together/", together_views.together, name="together"),
    path("<uuid:approval_id>/", views.approval, name="approval"),
    path("<uuid:approval_id>/now/", views.poll_approval, name="now"),
    path("<uuid:approval_id>/versions/<int:number>/", views.version, name="version"),
    path("<uuid:approval_id>/decide/", views.decide, name="decide"),
    path("<uuid:approval_id>/ask/", views.ask, name="ask"),
    path("<uuid:approval_id>/edit/", views.edit, name="edit"),
    path("keys/", item_views.shortcuts, name="shortcuts"),
    path("items/<slug:kind>/<uuid:item_id>/", item_views.item, name="item"),
    path("items/<slug:kind>/<uuid:item_id>/now/", item_views.poll_item, name="item_now"),
    path("items/<slug:kind>/<uuid:item_id>/claim/", item_views.claim, name="claim"),
    path("items/<slug:kind>/<uuid:item_id>/release/", item_views.release, name="release"),
    path("items/<slug:kind>/<uuid:item_id>/assign/", item_views.assign, name="assign"),
    path("items/<slug:kind>/<uuid:item_id>/snooze/", item_views.snooze, name="snooze"),
    path("items/<slug:kind>/<uuid:item_id>/wake/", item_views.wake, name="wake"),
    path("items/<slug:kind>/<uuid:item_id>/comment/", item_views.comment, name="comment"),
    path("items/<slug:kind>/<uuid:item_id>/read/", item_views.read_mark, name="read_mark"),
]
