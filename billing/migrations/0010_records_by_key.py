
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0009_closed_periods_and_line_kinds'),
        ('portal', '0007_invoice_run_progress'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='usagerecord',
            index=models.Index(models.F('api_key_id'), models.OrderBy(models.F('started_at'), descending=True), models.OrderBy(models.F('request_id'), descending=True), name='billing_record_by_key'),
        ),
    ]
