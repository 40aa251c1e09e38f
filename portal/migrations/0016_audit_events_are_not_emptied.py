"""Audit events are not emptied either: TRUNCATE passes the triggers of rows by."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("portal", "0015_retired_limit_templates")]

    operations = [
        migrations.RunSQL(
            "CREATE TRIGGER portal_auditevent_not_emptied BEFORE TRUNCATE ON portal_auditevent"
            " FOR EACH STATEMENT EXECUTE FUNCTION portal_refuse_change();",
            "DROP TRIGGER portal_auditevent_not_emptied ON portal_auditevent;",
        ),
    ]
