"""Invoice lines of the new kinds; discounts and closed periods are append-only."""

from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_discount
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_period_close
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""
UNDO = """
DROP TRIGGER billing_append_only ON billing_discount;
DROP TRIGGER billing_append_only ON billing_period_close;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_usage_partitions")]

    operations = [
        migrations.AlterField(
            model_name="invoiceline",
            name="token_kind",
            field=models.CharField(
                blank=True,
                choices=[
                    ("input", "Input"),
                    ("cached_input", "cached input"),
                    ("cache_write", "cache write"),
                    ("output", "Output"),
                    ("reasoning", "Reasoning"),
                    ("minimum", "Minimum"),
                ],
                max_length=12,
            ),
        ),
        migrations.RunSQL(APPEND_ONLY, UNDO),
    ]
