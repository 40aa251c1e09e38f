"""Usage records by month: the table is partitioned by its request id, which follows time.

What there is becomes the first partition as it stands, up to the next month, without a copy; ids that do not follow time
are moved to the partition of the rest, so that a new month is made without a look at old rows. Later months are made
ahead by `billing.usage.partitions`.
"""

from django.db import migrations

FLOOR = """
-- The smallest request id of a moment: ids made then or later are not below it.
CREATE FUNCTION billing_request_id_floor(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
"""

INDEXES = (
    ("billing_record_page", "(organization_id, started_at DESC, request_id DESC)"),
    ("billing_record_started", "(organization_id, started_at) WHERE status = 'started'"),
    ("billing_record_day", "USING brin (started_at) WITH (autosummarize = on)"),
    ("billing_record_to_invoice", "(organization_id, started_at) WHERE invoice_id IS NULL AND NOT status = 'started'"),
    ("billing_record_invoice", "(invoice_id) WHERE invoice_id IS NOT NULL"),
)
TRIGGERS = """
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_usage_record
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_final_stays BEFORE UPDATE ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status <> 'started') EXECUTE FUNCTION billing_guard_final_usage();
CREATE TRIGGER billing_opening_stays BEFORE UPDATE ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status = 'started' AND (
        OLD.request_id, OLD.organization_id, OLD.project_id, OLD.api_key_id, OLD.model, OLD.price_id, OLD.hold_nano,
        OLD.started_at, OLD.attempt) IS DISTINCT FROM (
        NEW.request_id, NEW.organization_id, NEW.project_id, NEW.api_key_id, NEW.model, NEW.price_id, NEW.hold_nano,
        NEW.started_at, NEW.attempt)) EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_ended AFTER UPDATE OF status ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status = 'started' AND NEW.status <> 'started') EXECUTE FUNCTION billing_note_ended();
CREATE TRIGGER billing_made_ended AFTER INSERT ON billing_usage_record
    FOR EACH ROW WHEN (NEW.status <> 'started') EXECUTE FUNCTION billing_note_ended();
"""
FOREIGN_KEYS = """
ALTER TABLE billing_usage_record
    ADD CONSTRAINT billing_record_organization FOREIGN KEY (organization_id) REFERENCES portal_organization (id)
        DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT billing_record_price FOREIGN KEY (price_id) REFERENCES billing_price (id)
        DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT billing_record_invoice FOREIGN KEY (invoice_id) REFERENCES billing_invoice (id)
        DEFERRABLE INITIALLY DEFERRED;
"""
# Names of foreign keys are Django's, with a hash: found by what they refer to.
PARTITION = f"""
DO $$
DECLARE
    found record;
    columns text;
    next_month timestamptz := date_trunc('month', now() AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC';
BEGIN
    FOR found IN SELECT conrelid::regclass AS referrer, conname FROM pg_constraint
                  WHERE contype = 'f' AND confrelid = 'billing_usage_record'::regclass LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', found.referrer, found.conname);
    END LOOP;
    FOR found IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'billing_usage_record'::regclass AND NOT tgisinternal LOOP
        EXECUTE format('DROP TRIGGER %I ON billing_usage_record', found.tgname);
    END LOOP;
    ALTER TABLE billing_usage_record RENAME TO billing_usage_record_first;
    FOR found IN SELECT indexrelid::regclass AS name, relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
                  WHERE indrelid = 'billing_usage_record_first'::regclass LOOP
        EXECUTE format('ALTER INDEX %s RENAME TO %I', found.name, found.relname || '_first');
    END LOOP;
    CREATE TABLE billing_usage_record (
        LIKE billing_usage_record_first INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE,
        CONSTRAINT billing_usage_record_pkey PRIMARY KEY (request_id)
    ) PARTITION BY RANGE (request_id);
    {"".join(f"CREATE INDEX {name} ON billing_usage_record {form};" for name, form in INDEXES)}
    CREATE TABLE billing_usage_record_rest PARTITION OF billing_usage_record DEFAULT;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO columns FROM pg_attribute
     WHERE attrelid = 'billing_usage_record_rest'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    EXECUTE format('INSERT INTO billing_usage_record_rest (%1$s) SELECT %1$s FROM billing_usage_record_first'
        ' WHERE request_id >= %2$L', columns, billing_request_id_floor(next_month));
    DELETE FROM billing_usage_record_first WHERE request_id >= billing_request_id_floor(next_month);
    EXECUTE format('ALTER TABLE billing_usage_record ATTACH PARTITION billing_usage_record_first'
        ' FOR VALUES FROM (MINVALUE) TO (%L)', billing_request_id_floor(next_month));
END $$;
"""
REFERRER = """
ALTER TABLE billing_usage_adjustment ADD CONSTRAINT billing_adjustment_record FOREIGN KEY (record_id)
    REFERENCES billing_usage_record (request_id) DEFERRABLE INITIALLY DEFERRED;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0007_price_kinds_and_evidence")]

    # The records keep their content in a plain table only by a copy: there is no way back.
    operations = [migrations.RunSQL([FLOOR, PARTITION, FOREIGN_KEYS, REFERRER, TRIGGERS])]
