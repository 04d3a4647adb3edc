"""The C interface from Python's side: records, library, and how sessions are handed to it."""
