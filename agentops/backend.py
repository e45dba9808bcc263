"""Who a person is and what they may do, with one query for the permissions."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db.models import Model


class Backend(ModelBackend):
    """Django's, which asks once for a person's own permissions and once for those of their groups: each page pays for both."""

    def get_all_permissions(self, user_obj: Any, obj: Model | AnonymousUser | None = None) -> set[str]:
        """Permissions as “app.codename”; kept with the user object."""
        if not isinstance(user_obj, User) or not user_obj.is_active or obj is not None:
            return set()
        if not hasattr(user_obj, "_perm_cache"):
            every = Permission.objects.values_list("content_type__app_label", "codename").order_by()
            found = every
            if not user_obj.is_superuser:
                found = every.filter(user=user_obj).union(every.filter(group__user=user_obj)).order_by()
            user_obj._perm_cache = {f"{app}.{codename}" for app, codename in found}  # type: ignore[attr-defined]
        kept: set[str] = user_obj._perm_cache  # type: ignore[attr-defined]
        return kept
