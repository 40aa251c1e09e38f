from __future__ import annotations


class ResponseNotFound(Exception):
    """Unknown, expired, or of another project: the three are not told apart."""

    code = "not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id}' not found.")
        self.response_id = response_id


class PreviousResponseNotFound(ResponseNotFound):
    """A response that is to be continued, or one before it, is not there."""

    code = "previous_response_not_found"


class ItemNotFound(Exception):
    """A page is to begin at an item that the response does not have."""

    def __init__(self, item_id: str) -> None:
        super().__init__(f"Item with id '{item_id}' not found.")
        self.item_id = item_id
