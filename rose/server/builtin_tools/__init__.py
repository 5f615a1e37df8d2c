"""Tools that the server runs itself, in the middle of an answer: a Python interpreter and a web search."""
