"""Results as views; `cli/formats` writes them."""
