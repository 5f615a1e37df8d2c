"""Ways to propose tokens ahead of the model; `plain` proposes none."""
