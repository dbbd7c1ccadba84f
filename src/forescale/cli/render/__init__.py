"""Results as tables of the terminal; every function returns something that rich can print."""
