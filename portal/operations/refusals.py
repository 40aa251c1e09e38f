"""Refusals as the operations view shows them: over time by reason, and which organizations met each reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.urls import reverse

from portal.organizations import selectors as organizations

# So many reasons, and of each so many organizations.
REASONS_SHOWN, ORGANIZATIONS_SHOWN = 8, 3

_WHERE = """
grain_s IN (60, 3600) AND start >= %(start)s
AND (%(organization_id)s::bigint IS NULL OR organization_id = %(organization_id)s)
"""
_OVER_TIME = f"""
SELECT extract(epoch FROM start)::bigint / %(step_s)s * %(step_s)s, code, SUM(count)::bigint
  FROM portal_refusal_count WHERE {_WHERE} GROUP BY 1, 2
"""  # noqa: S608 - constants only
_BY_REASON = f"""
SELECT code, organization_id, count, of_code
  FROM (SELECT code, organization_id, SUM(count)::bigint AS count,
               (SUM(SUM(count)) OVER (PARTITION BY code))::bigint AS of_code,
               row_number() OVER (PARTITION BY code ORDER BY SUM(count) DESC, organization_id) AS place
          FROM portal_refusal_count WHERE {_WHERE} GROUP BY 1, 2) refused
 WHERE place <= {ORGANIZATIONS_SHOWN} ORDER BY of_code DESC, code, place
"""  # noqa: S608 - constants only


def over_time(organization_id: int | None, start: datetime, step_s: int, times: Sequence[int]) -> dict[str, list[int]]:
    """By reason, most frequent first. Refused calls reach no deployment, so model and deployment do not filter them."""
    codes: dict[str, dict[int, int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_OVER_TIME, {"step_s": step_s, "start": start, "organization_id": organization_id})
        for step, code, count in cursor.fetchall():
            codes.setdefault(code, {})[step] = count
    ordered = sorted(codes.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return {code: [counts.get(at, 0) for at in times] for code, counts in ordered}


def by_reason(organization_id: int | None, start: datetime) -> list[dict[str, Any]]:
    """The most frequent reasons, each with the organizations that met it most. Those that no key told are left out."""
    with connection.cursor() as cursor:
        cursor.execute(_BY_REASON, {"start": start, "organization_id": organization_id})
        found = cursor.fetchall()
    known = organizations.organizations_by_id(sorted({number for _, number, _, _ in found if number}))
    reasons: dict[str, dict[str, Any]] = {}
    for code, number, count, of_code in found:
        reason = reasons.setdefault(code, {"code": code, "count": of_code, "organizations": []})
        if number in known:
            page = reverse("portal:operator_organization", args=[known[number].slug])
            reason["organizations"].append({"name": known[number].name, "page": page, "count": count})
    return list(reasons.values())[:REASONS_SHOWN]
