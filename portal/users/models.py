"""A person who signs in. The e-mail address is the name they sign in with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

from portal.plain_text import refuse_invisible

if TYPE_CHECKING:
    from portal.api_keys.models import ManagementKey, OperatorKey
    from portal.operator.acting import Acting


class UserManager(BaseUserManager["User"]):
    use_in_migrations = True

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        if not email:
            raise ValueError("A user needs an e-mail address.")
        user = self.model(email=email.strip().lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email__iexact=username)


class User(AbstractBaseUser, PermissionsMixin):
    """`is_staff` makes an operator: someone who runs the service, not a member of any one organization."""

    email = models.EmailField("e-mail address", unique=True)
    name = models.CharField(max_length=100, blank=True, validators=[refuse_invisible])
    # Empty: what the browser asks for.
    language = models.CharField(max_length=10, blank=True, default="")
    is_staff = models.BooleanField("operator", default=False)
    is_active = models.BooleanField(default=True)
    date_joined = models.DateTimeField(default=timezone.now)

    # Set for one request that a management key makes in this person's name; access and roles are then the key's.
    management_key: ManagementKey | None = None
    # The same of an operator key: then the person is a member of nothing.
    operator_key: OperatorKey | None = None
    # Set for the requests of an operator who acts for an organization (portal/operator/acting.py).
    acting: Acting | None = None

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        app_label = "portal"
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_once_in_any_case")]

    def __str__(self) -> str:
        return self.email

    def get_full_name(self) -> str:
        return self.name or self.email

    def get_short_name(self) -> str:
        """What to call the person: the given name, else the part of the address before the @."""
        return self.name or self.email.partition("@")[0]
