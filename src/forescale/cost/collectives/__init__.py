"""Time of communication: a group laid over the network, the ways of its library, the fastest of them."""
