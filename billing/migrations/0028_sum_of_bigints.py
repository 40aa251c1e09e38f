"""PostgreSQL's own sum of bigints makes a numeric, which takes twice as long where the groups are many. This one is a
bigint, and an error where that is too small."""

from django.db import migrations

CREATE = """
CREATE AGGREGATE billing_sum(bigint) (SFUNC = int8pl, STYPE = bigint, COMBINEFUNC = int8pl, PARALLEL = SAFE);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0027_key_rollups_by_key")]

    operations = [migrations.RunSQL(CREATE, "DROP AGGREGATE billing_sum(bigint)")]
