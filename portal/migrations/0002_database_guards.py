"""What only the database can promise: audit events are append-only, and a key's organization is its project's."""

from django.db import migrations

APPEND_ONLY = """
CREATE FUNCTION portal_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER portal_auditevent_append_only BEFORE UPDATE OR DELETE ON portal_auditevent
    FOR EACH ROW EXECUTE FUNCTION portal_refuse_change();
"""

SAME_ORGANIZATION = """
ALTER TABLE portal_project ADD CONSTRAINT project_id_with_organization UNIQUE (id, organization_id);
ALTER TABLE portal_apikey ADD CONSTRAINT api_key_project_of_organization
    FOREIGN KEY (project_id, organization_id) REFERENCES portal_project (id, organization_id)
    DEFERRABLE INITIALLY DEFERRED;
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0001_initial")]

    operations = [
        migrations.RunSQL(
            APPEND_ONLY,
            "DROP TRIGGER portal_auditevent_append_only ON portal_auditevent; DROP FUNCTION portal_refuse_change();",
        ),
        migrations.RunSQL(
            SAME_ORGANIZATION,
            "ALTER TABLE portal_apikey DROP CONSTRAINT api_key_project_of_organization;"
            "ALTER TABLE portal_project DROP CONSTRAINT project_id_with_organization;",
        ),
    ]
