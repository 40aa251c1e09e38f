from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"
    verbose_name = "Portal"

    def ready(self) -> None:
        from portal.api_keys import redaction
        from portal.users import receivers  # noqa: F401  connects the signals

        redaction.install()
