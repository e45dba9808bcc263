"""People in front of a browser."""

from tests.people import SignIn, sign_in

__all__ = ["SignIn", "sign_in"]
