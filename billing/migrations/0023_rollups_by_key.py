"""Charts of single API keys of an organization that has many."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("billing", "0022_context_held")]

    operations = [
        AddIndexConcurrently(
            model_name="usagerollup",
            index=models.Index(fields=["api_key_id", "grain_s", "start"], name="billing_usage_rollup_by_key"),
        ),
    ]
