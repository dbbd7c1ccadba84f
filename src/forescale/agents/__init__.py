"""Tools for agents: a server of the Model Context Protocol (extra `mcp`), and the guard around its files."""
