"""Charges a card with the official SDK, as its documentation shows it, and prints what came back."""

import json
import sys

import stripe

stripe.api_key = "sk_test_0123456789"
stripe.api_base = sys.argv[1]
stripe.max_network_retries = 4
charge = stripe.Charge.create(amount=2000, currency="eur", source="tok_visa")
headers = charge.last_response.headers
print(json.dumps({
    "id": charge.id,
    "amount": charge.amount,
    "replayed": headers.get("idempotent-replayed", ""),
}))
