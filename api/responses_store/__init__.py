"""Responses that are kept for their project: to be read again, listed, deleted, and continued.

A response is kept with its own input and output items; `previous` links it to the one it continues, so a conversation
of many turns is stored once. It is forgotten `RESPONSE_RETENTION_DAYS` after it was made or last continued. Nothing
is kept for an organization that did not switch it on.
"""
