from django.urls import path

from agentops.look import views

app_name = "look"
urlpatterns = [
    path("", views.parts, name="parts"),
    path("form/", views.form, name="form"),
    path("tick/", views.tick, name="tick"),
    path("error/<int:status>/", views.error, name="error"),
]
