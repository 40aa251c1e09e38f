
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('portal', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='StoredResponse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('response_id', models.CharField(max_length=80, unique=True)),
                ('previous_response_id', models.CharField(blank=True, max_length=80)),
                ('body', models.TextField()),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(db_index=True)),
                ('previous', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='api.storedresponse')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='portal.project')),
            ],
        ),
        migrations.CreateModel(
            name='StoredItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('is_output', models.BooleanField()),
                ('position', models.PositiveIntegerField()),
                ('item_id', models.CharField(db_index=True, max_length=200)),
                ('body', models.TextField()),
                ('response', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='items', to='api.storedresponse')),
            ],
        ),
        migrations.CreateModel(
            name='IdempotentCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=255)),
                ('digest', models.CharField(max_length=64)),
                ('request_id', models.UUIDField()),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('content_type', models.CharField(blank=True, max_length=100)),
                ('answer', models.BinaryField(null=True)),
                ('created_at', models.DateTimeField(db_index=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='portal.project')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('project', 'key'), name='api_idempotency_key_once')],
            },
        ),
        migrations.AddConstraint(
            model_name='storedresponse',
            constraint=models.CheckConstraint(condition=models.Q(('expires_at__gt', models.F('created_at'))), name='api_response_expires_later'),
        ),
        migrations.AddConstraint(
            model_name='storeditem',
            constraint=models.UniqueConstraint(fields=('response', 'is_output', 'position'), name='api_item_position_once'),
        ),
    ]
