"""Lists and sums of single end users. What writes records waits for it: a minute or two for each ten million."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0025_project_rollups")]

    operations = [
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                models.F("organization"),
                models.F("end_user"),
                models.OrderBy(models.F("started_at"), descending=True),
                models.OrderBy(models.F("request_id"), descending=True),
                condition=models.Q(("end_user__gt", "")),
                name="billing_record_by_user",
            ),
        ),
    ]
