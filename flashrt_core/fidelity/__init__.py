"""A pipeline against its reference, with gates."""
