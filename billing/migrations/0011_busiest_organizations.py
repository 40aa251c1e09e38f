from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0010_records_by_key'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='servicerollup',
            name='billing_service_rollup_start',
        ),
        migrations.RemoveIndex(
            model_name='servicerollup',
            name='billing_service_rollup_minute',
        ),
        migrations.AddIndex(
            model_name='servicerollup',
            index=models.Index(fields=['grain_s', 'start'], include=('organization_id', 'completion_tokens'), name='billing_service_rollup_busiest'),
        ),
    ]
