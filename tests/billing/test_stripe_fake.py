"""The fake refuses what Stripe refuses, so that a test passing on it means something."""

from decimal import Decimal

import pytest
import stripe


@pytest.fixture
def client(fake):
    return stripe.StripeClient(fake.secret_key, base_addresses={"api": fake.url}, max_network_retries=0)


@pytest.fixture
def customer(client):
    return client.v1.customers.create({"email": "ada@example.com", "metadata": {"organization_id": "7"}})


@pytest.fixture
def draft(client, customer):
    return client.v1.invoices.create(
        {"customer": customer.id, "currency": "usd", "collection_method": "send_invoice", "days_until_due": 30}
    )


def add(client, draft, **amount):
    return client.v1.invoice_items.create(
        {"customer": draft.customer, "invoice": draft.id, "currency": "usd", **amount}
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"nonsense": 1}, "unknown parameter: nonsense"),
        ({"address": {"planet": "Mars"}}, r"unknown parameter: address\[planet\]"),
        ({"balance": "much"}, "Invalid int"),
        ({"tax_exempt": "maybe"}, "must be one of"),
        ({"expand": "all"}, "Invalid array"),
        ({"metadata": "none"}, "Invalid"),
    ],
)
def test_parameters_are_checked_by_the_clients_types(client, params, message):
    with pytest.raises(stripe.InvalidRequestError, match=message):
        client.v1.customers.create(params)


def test_a_missing_parameter_is_named(client):
    with pytest.raises(stripe.InvalidRequestError, match="Missing required param: query"):
        client.v1.customers.search({})


def test_products_and_prices_make_items(client, customer, draft):
    product = client.v1.products.create({"name": "Output tokens"})
    price = client.v1.prices.create({"product": product.id, "currency": "usd", "unit_amount_decimal": Decimal("203")})
    item = add(client, draft, pricing={"price": price.id}, quantity=2)
    assert item.amount == 406
    with pytest.raises(stripe.InvalidRequestError, match="No such product"):
        client.v1.prices.create({"product": "prod_x", "currency": "usd", "unit_amount": 1})


@pytest.mark.parametrize(
    "amount",
    [
        {},
        {"amount": 1, "unit_amount_decimal": Decimal(1)},
        {"amount": 1, "quantity": 2},
        {"unit_amount_decimal": Decimal("0.1234567890123")},
        {"unit_amount_decimal": Decimal(1), "quantity_decimal": Decimal(-1)},
    ],
)
def test_an_item_has_one_clear_amount(client, draft, amount):
    with pytest.raises(stripe.InvalidRequestError):
        add(client, draft, **amount)


def test_an_invoice_goes_its_way_and_no_other(client, draft):
    add(client, draft, amount=1000)
    with pytest.raises(stripe.InvalidRequestError, match="can't be paid: it is draft"):
        client.v1.invoices.pay(draft.id)
    assert client.v1.invoices.finalize_invoice(draft.id).status == "open"
    with pytest.raises(stripe.InvalidRequestError, match="already finalized"):
        client.v1.invoices.finalize_invoice(draft.id)
    with pytest.raises(stripe.InvalidRequestError, match="no longer editable"):
        add(client, draft, amount=1)
    with pytest.raises(stripe.InvalidRequestError, match="only delete draft"):
        client.v1.invoices.delete(draft.id)
    client.v1.invoices.send_invoice(draft.id)
    paid = client.v1.invoices.pay(draft.id)
    assert (paid.status, paid.amount_paid, paid.amount_remaining) == ("paid", 1000, 0)
    with pytest.raises(stripe.InvalidRequestError, match="open or uncollectible"):
        client.v1.invoices.void_invoice(draft.id)


def test_void_and_delete(client, customer, draft):
    other = client.v1.invoices.create({"customer": customer.id, "currency": "usd"})
    assert client.v1.invoices.delete(other.id).deleted
    add(client, draft, amount=5)
    client.v1.invoices.finalize_invoice(draft.id)
    assert client.v1.invoices.void_invoice(draft.id).status == "void"


def test_credit_notes_take_from_what_is_left(client, draft):
    add(client, draft, amount=1000)
    client.v1.invoices.finalize_invoice(draft.id)
    client.v1.credit_notes.create({"invoice": draft.id, "amount": 400})
    assert client.v1.invoices.retrieve(draft.id).amount_remaining == 600
    with pytest.raises(stripe.InvalidRequestError, match="more than what is left"):
        client.v1.credit_notes.create({"invoice": draft.id, "amount": 601})
    client.v1.invoices.pay(draft.id)
    client.v1.credit_notes.create({"invoice": draft.id, "amount": 600, "refund_amount": 600})


def test_an_idempotency_key_answers_once(client, fake):
    options = {"idempotency_key": "key-1"}
    before = len(fake.store.all("customer"))
    first = client.v1.customers.create({"email": "a@example.com"}, options)
    again = client.v1.customers.create({"email": "a@example.com"}, options)
    assert first.id == again.id
    assert len(fake.store.all("customer")) == before + 1
    with pytest.raises(stripe.IdempotencyError):
        client.v1.customers.create({"email": "b@example.com"}, options)


def test_lists_page_and_search_finds_by_metadata(client, fake, customer):
    for number in range(12):
        client.v1.invoices.create({"customer": customer.id, "currency": "usd", "metadata": {"n": str(number)}})
    listed = list(client.v1.invoices.list({"customer": customer.id, "limit": 5}).auto_paging_iter())
    assert [row.metadata["n"] for row in listed] == [str(number) for number in reversed(range(12))]
    assert client.v1.customers.search({"query": "metadata['organization_id']:'7'"}).data[0].email == "ada@example.com"


def test_wrong_keys_and_versions_are_refused(fake):
    with pytest.raises(stripe.AuthenticationError):
        stripe.StripeClient("sk_test_x", base_addresses={"api": fake.url}).v1.customers.list()
    old = stripe.StripeClient(fake.secret_key, base_addresses={"api": fake.url}, stripe_version="2017-08-15")
    with pytest.raises(stripe.InvalidRequestError, match="version must be"):
        old.v1.customers.list()


def test_faults_come_when_ordered(client, fake):
    fake.fail(path="/v1/products", status=429)
    with pytest.raises(stripe.RateLimitError):
        client.v1.products.create({"name": "x"})
    fake.fail(path="/v1/products", kind="lost_answer")
    with pytest.raises(stripe.APIConnectionError):
        client.v1.products.create({"name": "lost"})
    assert fake.store.all("product")[0]["name"] == "lost"
    assert client.v1.products.create({"name": "y"}).name == "y"
