"""`rose bench`, a module for each of its commands."""
