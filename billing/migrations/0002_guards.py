"""What only the database can promise: facts are append-only, transactions balance, projections follow, invoices freeze.

`balances` runs once per statement over all new entries, so a batch pays for it once; the balance check is deferred to
the commit, where it sees each transaction whole.
"""

from django.db import migrations

APPEND_ONLY = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused; a mistake is corrected by a new row', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_ledger_transaction
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_ledger_entry
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_credit_grant
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_payment
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_payment_event
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_usage_record
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_usage_adjustment
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_counts_stay BEFORE UPDATE OF source, sequence, request_id, tenant, model, status, prompt_tokens,
    cached_tokens, completion_tokens, reasoning_tokens, error_code, started_at, finished_at, ttft_ms, received_at
    ON billing_receipt FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""

# In a BEFORE trigger NEW's generated columns are still null: they are taken from OLD before the comparison.
USAGE = """
CREATE FUNCTION billing_guard_final_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    same record;
BEGIN
    IF OLD.invoice_id IS NOT NULL AND NEW.invoice_id IS NOT NULL AND OLD.invoice_id <> NEW.invoice_id THEN
        RAISE EXCEPTION '% is already on invoice %', TG_TABLE_NAME, OLD.invoice_id USING ERRCODE = 'restrict_violation';
    END IF;
    same := NEW;
    same.invoice_id := OLD.invoice_id;
    same.cost_nano := OLD.cost_nano;
    IF same IS DISTINCT FROM OLD THEN
        RAISE EXCEPTION '% is final: only its invoice may be set; correct it by an adjustment', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_final_stays BEFORE UPDATE ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status <> 'started') EXECUTE FUNCTION billing_guard_final_usage();
CREATE TRIGGER billing_final_stays BEFORE UPDATE ON billing_usage_adjustment
    FOR EACH ROW EXECUTE FUNCTION billing_guard_final_usage();
CREATE TRIGGER billing_opening_stays BEFORE UPDATE ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status = 'started' AND (
        OLD.request_id, OLD.organization_id, OLD.project_id, OLD.api_key_id, OLD.model, OLD.price_id, OLD.hold_nano,
        OLD.started_at) IS DISTINCT FROM (
        NEW.request_id, NEW.organization_id, NEW.project_id, NEW.api_key_id, NEW.model, NEW.price_id, NEW.hold_nano,
        NEW.started_at)) EXECUTE FUNCTION billing_refuse_change();
"""

LEDGER = """
CREATE FUNCTION billing_check_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rest record;
BEGIN
    SELECT account.currency, SUM(entry.amount_nano) AS amount INTO rest
      FROM billing_ledger_entry entry JOIN billing_ledger_account account ON account.id = entry.account_id
     WHERE entry.transaction_id = NEW.transaction_id
     GROUP BY account.currency HAVING SUM(entry.amount_nano) <> 0 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % does not sum to zero: % nano % left',
            NEW.transaction_id, rest.amount, rest.currency USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_balanced AFTER INSERT ON billing_ledger_entry DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_check_balanced();

CREATE FUNCTION billing_project_balances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_organization_balance balance
       SET credit_nano = balance.credit_nano + moved.credit, receivable_nano = balance.receivable_nano + moved.receivable
      FROM (SELECT account.organization_id,
                   COALESCE(SUM(entry.amount_nano) FILTER (WHERE account.kind = 'credit'), 0) AS credit,
                   COALESCE(SUM(entry.amount_nano) FILTER (WHERE account.kind = 'receivable'), 0) AS receivable
              FROM new_entries entry JOIN billing_ledger_account account ON account.id = entry.account_id
             WHERE account.organization_id IS NOT NULL GROUP BY account.organization_id) moved
     WHERE balance.organization_id = moved.organization_id;
    UPDATE billing_grant_balance balance SET remaining_nano = balance.remaining_nano + moved.amount
      FROM (SELECT grant_id, SUM(amount_nano) AS amount FROM new_entries WHERE grant_id IS NOT NULL GROUP BY grant_id) moved
     WHERE balance.grant_id = moved.grant_id;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_balances AFTER INSERT ON billing_ledger_entry REFERENCING NEW TABLE AS new_entries
    FOR EACH STATEMENT EXECUTE FUNCTION billing_project_balances();

-- Every organization account has its balance row, so a posting can never miss the projection.
ALTER TABLE billing_ledger_account ADD CONSTRAINT billing_ledger_account_has_balance
    FOREIGN KEY (organization_id) REFERENCES billing_organization_balance (organization_id) DEFERRABLE INITIALLY DEFERRED;
"""

INVOICES = """
CREATE FUNCTION billing_guard_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    same record;
    total record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.status <> 'draft' THEN
            RAISE EXCEPTION 'invoice % is %: only a draft can be deleted', OLD.number, OLD.status
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.status = 'draft' AND NEW.status = 'final' THEN
        SELECT COALESCE(SUM(amount_nano), 0) AS nano, COALESCE(SUM(amount_minor), 0) AS minor INTO total
          FROM billing_invoice_line WHERE invoice_id = NEW.id;
        IF total.nano <> NEW.usage_nano OR total.minor <> NEW.subtotal_minor THEN
            RAISE EXCEPTION 'invoice %: its lines sum to % nano, % minor, not to % and %', NEW.id, total.nano, total.minor,
                NEW.usage_nano, NEW.subtotal_minor USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.status = 'draft' AND NEW.status = 'draft' THEN
        RETURN NEW;
    END IF;
    IF OLD.status <> NEW.status AND NOT (OLD.status = 'final' AND NEW.status IN ('paid', 'void')) THEN
        RAISE EXCEPTION 'invoice % cannot go from % to %', OLD.number, OLD.status, NEW.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    same := NEW;
    same.status := OLD.status;
    same.paid_at := OLD.paid_at;
    same.voided_at := OLD.voided_at;
    same.void_reason := OLD.void_reason;
    IF same IS DISTINCT FROM OLD THEN
        RAISE EXCEPTION 'invoice % is %: nothing but its state may change', OLD.number, OLD.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_invoice_guard BEFORE UPDATE OR DELETE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION billing_guard_invoice();

CREATE FUNCTION billing_guard_invoice_line() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    parent record;
BEGIN
    SELECT status, number INTO parent FROM billing_invoice WHERE id = COALESCE(NEW.invoice_id, OLD.invoice_id);
    IF parent.status IS DISTINCT FROM 'draft' THEN
        RAISE EXCEPTION 'the lines of invoice % are frozen: it is %', parent.number, parent.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN COALESCE(NEW, OLD);
END $$;
CREATE TRIGGER billing_line_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_invoice_line
    FOR EACH ROW EXECUTE FUNCTION billing_guard_invoice_line();
"""

UNDO = """
DROP TRIGGER billing_line_guard ON billing_invoice_line;
DROP TRIGGER billing_invoice_guard ON billing_invoice;
ALTER TABLE billing_ledger_account DROP CONSTRAINT billing_ledger_account_has_balance;
DROP TRIGGER billing_balances ON billing_ledger_entry;
DROP TRIGGER billing_balanced ON billing_ledger_entry;
DROP TRIGGER billing_opening_stays ON billing_usage_record;
DROP TRIGGER billing_final_stays ON billing_usage_adjustment;
DROP TRIGGER billing_final_stays ON billing_usage_record;
DROP TRIGGER billing_counts_stay ON billing_receipt;
DROP TRIGGER billing_no_delete ON billing_usage_adjustment;
DROP TRIGGER billing_no_delete ON billing_usage_record;
DROP TRIGGER billing_append_only ON billing_payment_event;
DROP TRIGGER billing_append_only ON billing_payment;
DROP TRIGGER billing_append_only ON billing_credit_grant;
DROP TRIGGER billing_append_only ON billing_ledger_entry;
DROP TRIGGER billing_append_only ON billing_ledger_transaction;
DROP TRIGGER billing_append_only ON billing_price;
DROP FUNCTION billing_guard_invoice_line();
DROP FUNCTION billing_guard_invoice();
DROP FUNCTION billing_project_balances();
DROP FUNCTION billing_check_balanced();
DROP FUNCTION billing_guard_final_usage();
DROP FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [migrations.RunSQL([APPEND_ONLY, USAGE, LEDGER, INVOICES], UNDO)]
