"""What only the database can promise of the commercial side: issued papers freeze, states follow their tables."""

from django.db import migrations

INVOICES = """
CREATE OR REPLACE FUNCTION billing_guard_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
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
        SELECT COALESCE(SUM(amount_nano) FILTER (WHERE kind <> 'fee'), 0) AS usage,
               COALESCE(SUM(amount_nano) FILTER (WHERE kind = 'fee'), 0) AS fees,
               COALESCE(SUM(amount_minor), 0) AS minor INTO total
          FROM billing_invoice_line WHERE invoice_id = NEW.id;
        IF total.usage <> NEW.usage_nano OR total.fees <> NEW.fees_nano OR total.minor <> NEW.subtotal_minor THEN
            RAISE EXCEPTION 'invoice %: its lines sum to % nano of usage, % of fees, % minor, not to %, % and %', NEW.id,
                total.usage, total.fees, total.minor, NEW.usage_nano, NEW.fees_nano, NEW.subtotal_minor
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.status = 'draft' AND NEW.status = 'draft' THEN
        RETURN NEW;
    END IF;
    IF OLD.status <> NEW.status AND NOT (
        (OLD.status = 'final' AND NEW.status IN ('sent', 'past_due', 'paid', 'void'))
        OR (OLD.status = 'sent' AND NEW.status IN ('past_due', 'paid', 'void', 'uncollectible'))
        OR (OLD.status = 'past_due' AND NEW.status IN ('paid', 'void', 'uncollectible'))
        OR (OLD.status = 'uncollectible' AND NEW.status = 'paid')) THEN
        RAISE EXCEPTION 'invoice % cannot go from % to %', OLD.number, OLD.status, NEW.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    same := NEW;
    same.status := OLD.status;
    same.sent_at := OLD.sent_at;
    same.paid_at := OLD.paid_at;
    same.voided_at := OLD.voided_at;
    same.void_reason := OLD.void_reason;
    same.uncollectible_at := OLD.uncollectible_at;
    IF same IS DISTINCT FROM OLD THEN
        RAISE EXCEPTION 'invoice % is %: nothing but its state may change', OLD.number, OLD.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
"""

# Tax numbers and rates, redemptions, claims: facts. Of a credit note and an event only what became of them may change.
FACTS = """
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_tax_rate
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_promo_redemption
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_free_credit_claim
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_paper_stays BEFORE UPDATE OF invoice_id, number, key, effect, amount_minor, tax_minor, reason,
    actor_id, issued_at ON billing_credit_note FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_credit_note
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
DROP TRIGGER billing_append_only ON billing_payment_event;
CREATE TRIGGER billing_event_stays BEFORE UPDATE OF provider, event_id, type, payload, received_at
    ON billing_payment_event FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_payment_event
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_terms_stay BEFORE UPDATE OF organization_id, name, quantity, unit_amount_minor, currency, starts_on
    ON billing_recurring_fee FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_recurring_fee
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_amounts_stay BEFORE UPDATE OF top_up_id, key, amount_minor, tax_minor, reason
    ON billing_refund FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""

TOP_UPS = """
CREATE FUNCTION billing_guard_top_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.organization_id, OLD.kind, OLD.key, OLD.currency, OLD.amount_minor, OLD.tax_minor) IS DISTINCT FROM
       (NEW.organization_id, NEW.kind, NEW.key, NEW.currency, NEW.amount_minor, NEW.tax_minor) THEN
        RAISE EXCEPTION 'top-up %: its amounts are fixed', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    -- A payment may come after its session lapsed or a first card was refused; paid is the end.
    IF OLD.state <> NEW.state AND NOT (
        (OLD.state = 'open' AND NEW.state IN ('paid', 'failed', 'expired'))
        OR (OLD.state IN ('failed', 'expired') AND NEW.state = 'paid')) THEN
        RAISE EXCEPTION 'top-up % cannot go from % to %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_top_up_guard BEFORE UPDATE ON billing_top_up
    FOR EACH ROW EXECUTE FUNCTION billing_guard_top_up();
CREATE TRIGGER billing_no_delete BEFORE DELETE ON billing_top_up
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""

# The house's two new accounts, in each currency that is in use.
ACCOUNTS = """
INSERT INTO billing_ledger_account (kind, organization_id, currency)
SELECT DISTINCT kind.name, NULL::bigint, account.currency
  FROM billing_ledger_account account CROSS JOIN (VALUES ('tax'), ('bad_debt')) AS kind (name)
ON CONFLICT DO NOTHING;
"""

UNDO = """
DROP TRIGGER billing_no_delete ON billing_top_up;
DROP TRIGGER billing_top_up_guard ON billing_top_up;
DROP FUNCTION billing_guard_top_up();
DROP TRIGGER billing_amounts_stay ON billing_refund;
DROP TRIGGER billing_no_delete ON billing_recurring_fee;
DROP TRIGGER billing_terms_stay ON billing_recurring_fee;
DROP TRIGGER billing_no_delete ON billing_payment_event;
DROP TRIGGER billing_event_stays ON billing_payment_event;
CREATE TRIGGER billing_append_only BEFORE UPDATE OR DELETE ON billing_payment_event
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
DROP TRIGGER billing_no_delete ON billing_credit_note;
DROP TRIGGER billing_paper_stays ON billing_credit_note;
DROP TRIGGER billing_append_only ON billing_free_credit_claim;
DROP TRIGGER billing_append_only ON billing_promo_redemption;
DROP TRIGGER billing_append_only ON billing_tax_rate;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_commerce")]

    operations = [migrations.RunSQL([INVOICES, FACTS, TOP_UPS, ACCOUNTS], UNDO)]
