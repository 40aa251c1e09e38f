from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"

    def ready(self) -> None:
        from api.credit import when_balance_changed
        from billing.ledger.signals import balance_changed

        balance_changed.connect(when_balance_changed, dispatch_uid="api.credit")
