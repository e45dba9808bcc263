"""Where a request comes from."""

import ipaddress

from django.conf import settings
from django.http import HttpRequest


def client_address(request: HttpRequest) -> str:
    """The client's IP address; of IPv6 its /64 network, all of which one customer has. "" where it is not known.

    Each of AGENTOPS_PROXIES proxies appends the address that called it to X-Forwarded-For. What stands further left came from
    the client and is not believed.
    """
    address = request.META.get("REMOTE_ADDR", "")
    if proxies := settings.AGENTOPS_PROXIES:
        hops = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
        if len(hops) >= proxies:
            return _network(hops[-proxies].strip()) or _network(address)
    return _network(address)


def _network(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
