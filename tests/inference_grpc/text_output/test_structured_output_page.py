from __future__ import annotations

from inference_grpc.text.constraint_page import PAGE, with_keyword_section


def test_the_page_lists_the_keywords_that_the_code_enforces():
    page = PAGE.read_text()
    assert with_keyword_section(page) == page, "run: python -m inference_grpc.text.constraint_page"
