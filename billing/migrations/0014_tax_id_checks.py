"""What the register said of tax numbers. Append-only."""

import django.db.models.deletion
from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_tax_id_check
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0013_match_rollups"),
        ("portal", "0010_allowed_origins"),
    ]

    operations = [
        migrations.CreateModel(
            name="TaxIdCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tax_id", models.CharField(max_length=64)),
                ("is_valid", models.BooleanField()),
                ("holder", models.CharField(blank=True, max_length=200)),
                ("consultation", models.CharField(blank=True, max_length=64)),
                ("checked_at", models.DateTimeField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="portal.organization"
                    ),
                ),
            ],
            options={
                "db_table": "billing_tax_id_check",
                "indexes": [models.Index(fields=["tax_id", "-id"], name="billing_tax_id_check_last")],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER billing_append_only ON billing_tax_id_check"),
    ]
