"""Invented orders: every id has one, always the same one."""

import random
from decimal import Decimal

_FIRST = (
    "Ada",
    "Björn",
    "Chidi",
    "Daria",
    "Emeka",
    "Farah",
    "Grace",
    "Hiro",
    "Inés",
    "Jonas",
    "Kemal",
    "Linh",
)
_LAST = ("Okafor", "Lindqvist", "Moreau", "Tanaka", "Novak", "Silva", "Haddad", "Keller", "Osei", "Petrov")
_GOODS = (
    ("Desk lamp", "34.90"),
    ("Notebook, dotted", "7.50"),
    ("Mechanical keyboard", "129.00"),
    ("Headphones", "89.95"),
    ("Coffee grinder", "58.00"),
    ("Rain jacket", "112.40"),
    ("Water bottle", "19.99"),
    ("Bicycle light", "24.30"),
)
_STATUS = ("delivered", "delivered", "delivered", "shipped", "lost_in_transit")


def order(order_id: str) -> dict[str, object]:
    """The order of an id: customer, items and amount (decimal text, in `currency`)."""
    chance = random.Random(f"order/{order_id}")
    name = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
    items = [
        {"name": goods, "quantity": chance.randint(1, 3), "price": price}
        for goods, price in chance.sample(_GOODS, chance.randint(1, 3))
    ]
    amount = sum((Decimal(str(item["price"])) * int(str(item["quantity"])) for item in items), Decimal(0))
    return {
        "id": order_id,
        "customer": name,
        "email": f"customer+{order_id}@example.com",
        "currency": "EUR",
        "amount": str(amount),
        "items": items,
        "status": chance.choice(_STATUS),
        "ordered_on": f"2026-{chance.randint(1, 9):02d}-{chance.randint(1, 28):02d}",
    }


def order_of_email(email: str) -> str | None:
    """The order id inside an invented customer's address, or None for an address nobody has."""
    local, _, domain = email.partition("@")
    head, plus, order_id = local.partition("+")
    return order_id if (head, plus, domain) == ("customer", "+", "example.com") and order_id else None


def page(cursor: str, pages: int = 10, size: int = 20) -> dict[str, object] | None:
    """One page of the provider's price list, or None for a cursor that it never gave out."""
    number = 0 if cursor == "" else int(cursor[1:]) if cursor[:1] == "p" and cursor[1:].isdecimal() else -1
    if not 0 <= number < pages:
        return None
    items = []
    for position in range(number * size, (number + 1) * size):
        name, price = random.Random(f"item/{position}").choice(_GOODS)
        items.append({"sku": f"SKU-{position:04d}", "name": name, "price": price, "currency": "EUR"})
    return {"items": items, "next_cursor": f"p{number + 1}" if number + 1 < pages else None}
