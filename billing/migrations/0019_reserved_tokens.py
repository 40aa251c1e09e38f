"""What limits reserved for a call stands beside its hold, so that counters which were lost can be rebuilt while it runs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0018_key_rollups")]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name=name,
            field=models.BigIntegerField(default=0, db_default=0),
        )
        for name in ("reserved_input_tokens", "reserved_output_tokens")
    ]
