from __future__ import annotations

from django.core.management import call_command

from api.protocols.field_support import SCHEMAS, marked_paths


def test_page_lists_the_fields_of_the_schemas() -> None:
    call_command("protocol_fields", check=True, skip_checks=True)


def test_nested_fields_are_found() -> None:
    paths = [path for path, _ in marked_paths(SCHEMAS["Messages"], "ignored")]
    assert "messages[].content[].cache_control" in paths
    assert "tools[].defer_loading" in paths
