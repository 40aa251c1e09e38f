"""What is left of months of usage records that were removed. Append-only."""

from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_retired_month
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0011_busiest_organizations")]

    operations = [
        migrations.CreateModel(
            name="RetiredMonth",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("period", models.CharField(help_text="YYYY-MM, in UTC.", max_length=7)),
                ("partition", models.CharField(max_length=63)),
                ("first_id", models.UUIDField(null=True)),
                ("until_id", models.UUIDField()),
                ("records", models.BigIntegerField()),
                ("cost_nano", models.BigIntegerField()),
                ("adjustments", models.BigIntegerField()),
                ("adjusted_nano", models.BigIntegerField()),
                ("retired_at", models.DateTimeField()),
                ("actor_name", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "db_table": "billing_retired_month",
                "constraints": [
                    models.UniqueConstraint(fields=("partition", "period"), name="billing_retired_month_once")
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER billing_append_only ON billing_retired_month"),
    ]
