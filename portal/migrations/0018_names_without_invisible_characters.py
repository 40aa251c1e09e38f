from django.db import migrations, models

import portal.plain_text


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0017_staged_kv_samples"),
    ]

    operations = [
        migrations.AlterField(
            model_name="model",
            name="display_name",
            field=models.CharField(max_length=100, validators=[portal.plain_text.refuse_invisible]),
        ),
        migrations.AlterField(
            model_name="user",
            name="name",
            field=models.CharField(blank=True, max_length=100, validators=[portal.plain_text.refuse_invisible]),
        ),
    ]
