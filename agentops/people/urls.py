"""Pages of people."""

from django.urls import path

from agentops.people import views

app_name = "people"
urlpatterns = [
    path("", views.index, name="list"),
    path("groups/", views.group_index, name="groups"),
    path("who/", views.who, name="who"),
    path("add/", views.add_person, name="add"),
    path("groups/add/", views.add_group, name="add_group"),
    path("<int:user_id>/", views.person, name="person"),
    path("groups/<int:group_id>/", views.group, name="group"),
    path("<int:user_id>/grant/", views.grant_person, name="grant"),
    path("groups/<int:group_id>/grant/", views.grant_group, name="grant_group"),
    path("take-back/<uuid:grant_id>/", views.take_back, name="take_back"),
    path("<int:user_id>/join/", views.join, name="join"),
    path("<int:user_id>/leave/<int:group_id>/", views.leave, name="leave"),
    path("<int:user_id>/off/", views.switch_off, name="switch_off"),
    path("<int:user_id>/on/", views.switch_on, name="switch_on"),
    path("<int:user_id>/link/", views.renew_link, name="renew_link"),
]
