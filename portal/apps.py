from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"
    verbose_name = "Portal"

    def ready(self) -> None:
        from portal.api_keys import redaction

        # Connects the signals.
        from portal.billing_pages import receivers as money  # noqa: F401
        from portal.users import receivers  # noqa: F401

        redaction.install()
