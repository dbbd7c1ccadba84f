"""Cost models: seconds of operators, and where they come from."""
