"""Four weeks of all divisions of usage, made from the days that are rolled up.

A worker of the version before this one adds nothing to them: start the new one at once, then let
`manage.py rebuild_rollups` make the days on which both ran.
"""

from django.db import migrations

SUMS = "requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nano"
ADDED = ", ".join(f"SUM({name})" for name in SUMS.split(", "))
COLUMNS = "project_id, api_key_id, model, protocol, status"

# With the lock under which rollups are written, so that none comes between. What is pending is added when it is taken.
FILL = f"""
SELECT pg_advisory_xact_lock(1919904876);
INSERT INTO billing_usage_rollup (organization_id, grain_s, start, {COLUMNS}, {SUMS})
SELECT organization_id, 2419200, date_bin('28 days', start, '1970-01-01 00:00:00+00'), {COLUMNS}, {ADDED}
  FROM billing_usage_rollup WHERE grain_s = 86400 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8;
"""
FORGET = "DELETE FROM billing_usage_rollup WHERE grain_s = 2419200"


class Migration(migrations.Migration):
    dependencies = [("billing", "0028_sum_of_bigints")]

    operations = [migrations.RunSQL(FILL, FORGET)]
