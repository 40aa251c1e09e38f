"""Answers kept under the caller's Idempotency-Key: the same key and body get the same answer, and one charge.

A call claims its key before it runs. While it runs a repeat is told to wait; when it has ended well a repeat gets the
same bytes without running anything; with another body the key is refused. A call that failed on our side gives its key
back, so that the repeat runs. Keys belong to a project and are forgotten after a day.
"""
