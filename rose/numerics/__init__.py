"""Number formats in plain torch: the meaning of the bits."""
