from django.conf import settings
from django.contrib.auth.views import PasswordChangeDoneView
from django.urls import include, path

from agentops import accounts, saved_views, sign_ins, views

urlpatterns = [
    path("", views.home, name="home"),
    path("sign-in/", accounts.SignIn.as_view(), name="login"),
    path("sign-in/again/", sign_ins.again, name="sign_in_again"),
    path("sign-in/first/<uidb64>/<token>/", accounts.FirstSignIn.as_view(), name="first_sign_in"),
    path("sign-out/", accounts.SignOut.as_view(), name="logout"),
    path("password/", accounts.ChangePassword.as_view(), name="password_change"),
    path("password/done/", PasswordChangeDoneView.as_view(), name="password_change_done"),
    path("views/", saved_views.listed, name="views"),
    path("views/save/", saved_views.save, name="save_view"),
    path("views/<int:view_id>/delete/", saved_views.delete, name="delete_view"),
    path("theme/", views.choose_theme, name="theme"),
    path("approvals/", include("approvals.urls")),
    path("policies/", include("approvals.policies.urls")),
    path("people/", include("agentops.people.urls")),
    path("requests/", include("approvals.requests.urls")),
    path("audit/", include("runs.audit_urls")),
    path("", include("runs.urls")),
]

if settings.AGENTOPS_DEBUG:
    urlpatterns += [path("look/", include("agentops.look.urls"))]

handler400 = "agentops.views.bad_request"
handler403 = "agentops.views.permission_denied"
handler404 = "agentops.views.not_found"
handler500 = "agentops.views.server_error"
