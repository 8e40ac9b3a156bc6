"""Routers: which of several engines serves a request."""
