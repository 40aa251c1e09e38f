"""Sums of some keys over months: looked up by key, in rows of days and four weeks."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("billing", "0026_records_by_end_user")]

    operations = [
        AddIndexConcurrently(
            model_name="keyrollup",
            index=models.Index(fields=["api_key_id", "grain_s", "start"], name="billing_key_rollup_by_key"),
        ),
    ]
