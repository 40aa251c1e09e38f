"""Index of the app's models; each lives in its domain package."""

from api.idempotency.models import IdempotentCall
from api.responses_store.models import StoredItem, StoredResponse

__all__ = ["IdempotentCall", "StoredItem", "StoredResponse"]
