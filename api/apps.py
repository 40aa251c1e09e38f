from django.apps import AppConfig
from django.conf import settings


class ApiConfig(AppConfig):
    name = "api"

    def ready(self) -> None:
        from api.protocols import sealing

        sealing.configure(settings.SECRET_KEY)
