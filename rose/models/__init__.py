"""Model architectures and the registry that finds them."""
