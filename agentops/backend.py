"""Who a person is and what they may do, with one query for all of it."""

import json
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db.models import Model

from runs import access
from runs.models import Grant

# Everything by primary key or an index on the person or the group. A superuser's permissions are not looked at.
_PERSON = """
SELECT u.*, ARRAY(
    SELECT c.app_label || '.' || p.codename FROM auth_permission p JOIN django_content_type c ON c.id = p.content_type_id
    WHERE p.id IN (
        SELECT permission_id FROM auth_user_user_permissions WHERE user_id = u.id
        UNION ALL
        SELECT h.permission_id FROM auth_group_permissions h JOIN auth_user_groups m USING (group_id) WHERE m.user_id = u.id
    ) AND NOT u.is_superuser
) AS has, (
    SELECT coalesce(jsonb_agg(jsonb_build_object('capability', capability, 'scope', scope, 'name', name)), '[]')
    FROM runs_grant WHERE user_id = u.id OR group_id IN (SELECT group_id FROM auth_user_groups WHERE user_id = u.id)
) AS granted
FROM auth_user u WHERE u.id = %s
"""


class Backend(ModelBackend):
    """Django's, which asks once for a person, and up to three times for what they may do: each page pays for all of it."""

    def get_user(self, user_id: Any) -> User | None:
        """The person of a session with their permissions and grants, as they are now; None where they may not sign in."""
        found = list(User.objects.raw(_PERSON, [user_id]))
        if not found or not self.user_can_authenticate(found[0]):
            return None
        (user,) = found
        if not user.is_superuser:
            user._perm_cache = set(user.has)  # type: ignore[attr-defined]
        access.keep_grants(user, [Grant(**grant) for grant in json.loads(user.granted)])  # type: ignore[attr-defined]
        return user

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
