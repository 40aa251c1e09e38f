"""A model has a list price in each currency: two may begin at the same moment."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0014_tax_id_checks")]

    operations = [
        migrations.RemoveConstraint(model_name="price", name="billing_price_one_per_date"),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.UniqueConstraint(
                fields=("model", "organization", "currency", "effective_from"),
                name="billing_price_one_per_date",
                nulls_distinct=False,
            ),
        ),
    ]
